"""The card of a model: Markdown with the metadata of the Hugging Face hub."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stages.data import DatasetInfo
from stages.system.files import describe

_CARD = """---
{metadata}
---

# {name}

A {name} of PyTorch for {task}, trained with learner-pipeline and torch {torch}.

| split | samples | {titles} |
|---|---|{rule}|
{rows}

## Data

| inputs | |
|---|---|
| shape | `{info[input_shape]}` |
| dtype | `{info[input_dtype]}` |
| normalization, `(x - mean) / std` | `{info[normalization]}` |
| classes | `{info[num_classes]}` |
| SHA-256 of the prepared data | `{data}` |

## Files

| file | bytes | SHA-256 |
|---|---|---|
{files}

## Params

```json
{params}
```
"""

_TASKS = ("image-classification", "tabular-classification", "tabular-regression", "text-classification")
"""Tasks of the hub."""


def model_card(
    resolved: Mapping[str, Any],
    info: DatasetInfo,
    values: Mapping[str, Mapping[str, float]],
    files: list[Path],
) -> str:
    """Return the card of the model in *files*.

    *resolved* is the content of config.json, with the license in ``save_model.license``; *info* describes the
    data; *values* has the metrics of the saved epoch by the name of their split.

    The commit is not on the card: that of the results contains it.
    """
    kind = str(resolved["build_learner"]["model"]["kind"]).rpartition(":")[2]
    names = sorted({name for metrics in values.values() for name in metrics})
    task = _find_task(info)
    entry = {
        "license": resolved["save_model"].get("license"),
        "library_name": "pytorch",
        "pipeline_tag": task,
        "tags": ["learner-pipeline", info.task],
        "model-index": [{"name": kind, "results": _results(task or info.task, values)}],
    }
    described = {file.name: describe(file) for file in files}
    return _CARD.format(
        metadata="\n".join(f"{name}: {json.dumps(value)}" for name, value in entry.items() if value),
        name=kind,
        task=(task or info.task).replace("-", " "),
        torch=torch.__version__.partition("+")[0],
        titles=" | ".join(names),
        rule="|".join("---" for _ in names),
        rows="\n".join(
            _row(split, count, values.get(split, {}), names) for split, count in info.counts.items()
        ),
        info={name: json.dumps(value) for name, value in info.model_dump(mode="json").items()},
        data=info.sha256,
        files="\n".join(
            f"| {name} | {file['size']} | `{file['sha256']}` |" for name, file in described.items()
        ),
        params=json.dumps(resolved, indent=2),
    )


def _find_task(info: DatasetInfo) -> str | None:
    """Return the name that the hub has for the task; None if it has none."""
    subject = "tabular" if info.feature_names else "text"
    if not (info.feature_names or info.tokenizer):
        subject = ""
    shape = info.input_shape
    if not isinstance(shape, dict) and len(shape) == 3 and shape[0] in (1, 3):
        subject = "image"
    task = f"{subject}-{info.task}"
    return task if task in _TASKS else None


def _row(split: str, count: int, values: Mapping[str, float], names: list[str]) -> str:
    cells = (f"{values[name]:.6g}" if name in values else "" for name in names)
    return f"| {split} | {count} | {' | '.join(cells)} |"


def _results(task: str, values: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the metrics in the form of the hub, which has no value for NaN and infinity."""
    return [
        {
            "task": {"type": task},
            "dataset": {"name": f"the {split} split", "type": "private", "split": split},
            "metrics": [
                {"type": name.lower(), "name": name, "value": value}
                for name, value in metrics.items()
                if math.isfinite(value)
            ],
        }
        for split, metrics in values.items()
    ]
