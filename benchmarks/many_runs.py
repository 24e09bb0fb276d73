"""A project with many experiments, made in seconds: git objects by `git fast-import`, outputs in DVC's cache.

Each run has its own params, logs, metrics, curves and values of every batch. The losses depend on the params.
The other outputs are one small file each, which all runs share.
"""

import hashlib
import json
import math
import random
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
FILES = ("dvc.yaml", "params.yaml", "dvc.lock", ".dvc/config", ".dvc/plots/confusion_counts.json")
PARAMS = {"learning_rate": "0.001", "dropout": "0.5", "batch_size": "32", "kind": "adam"}
"""The params that differ between runs, as in params.yaml."""
VERSIONS = re.compile(r"^ +(- )?stages/\w+\.py:.*\n( +VERSION: .*\n)?", re.MULTILINE)
"""The versions of the stages in dvc.yaml and dvc.lock."""
IDENTITY = "Benchmark <benchmark@localhost> 1700000000 +0000"
Outputs = dict[str, bytes | dict[str, bytes]]
"""Path to content; of a directory, the contents of its files."""


def make_runs(folder: Path, count: int, epochs: int, batches: int) -> None:
    """Make a project in *folder* with *count* experiments of *epochs* epochs of *batches* steps each."""
    head = make_project(folder)
    lock = YAML(typ="safe").load(folder / "dvc.lock")["stages"]
    shared = {out["path"]: b"shared" for stage in lock.values() for out in stage["outs"]}
    stream = b"".join(
        commit(folder, head, f"run-{run:04}", params_of(run), shared | outputs(run, epochs, batches))
        for run in range(count)
    )
    git(folder, "fast-import", "--quiet", stdin=stream)


def make_project(folder: Path) -> str:
    """Make a project without experiments and without code in *folder*, and return its commit."""
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / name).write_text(VERSIONS.sub("", text), encoding="utf-8")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-qm", "The project")
    return git(folder, "rev-parse", "HEAD").decode().strip()


def make_points(folder: Path, count: int) -> str:
    """Make a project in *folder* with *count* finished points of a sweep, and return its ``-S``."""
    head = make_project(folder)
    rates = [f"0.{number}1" for number in range(1000, 1000 + count)]
    points = [
        commit(folder, head, f"learning_rate={rate}", {**PARAMS, "learning_rate": rate}, {}) for rate in rates
    ]
    git(folder, "fast-import", "--quiet", stdin=b"".join(points))
    return f"build_learner.optimizer.learning_rate={','.join(rates)}"


def params_of(run: int) -> dict[str, str]:
    """Return the values of `PARAMS` of the run number *run*."""
    noise = random.Random(-1 - run)  # noqa: S311  not for security
    values = (f"{10 ** noise.uniform(-4, -1.5):.6f}", noise.choice(["0.1", "0.3", "0.5"]))
    others = (noise.choice(["16", "32", "64"]), noise.choice(["adam", "adamw", "rmsprop"]))
    return dict(zip(PARAMS, (*values, *others), strict=True))


def edit(text: str, params: dict[str, str]) -> str:
    """Return *text* with *params* in place of the values in params.yaml."""
    for key, old in PARAMS.items():
        text = text.replace(f"{key}: {old}\n", f"{key}: {params[key]}\n")
    return text


def commit(folder: Path, head: str, name: str, params: dict[str, str], written: Outputs) -> bytes:
    """Return the commands that make the experiment *name*, whose outputs go to the cache of *folder*."""
    lines = edit((folder / "dvc.lock").read_text(encoding="utf-8"), params).splitlines()
    for place, line in enumerate(lines):
        path = line.removeprefix("    - path: ")
        if path in written:
            lines[place + 2] = f"      md5: {cached(folder, written[path])}"
    planned = edit((folder / "params.yaml").read_text(encoding="utf-8"), params)
    header = f"commit refs/exps/{head[:2]}/{head[2:]}/{name}\ncommitter {IDENTITY}\n"
    files = {"dvc.lock": "\n".join(lines) + "\n", "params.yaml": planned}
    changes = b"".join(f"M 100644 inline {each}\n".encode() + data(text) for each, text in files.items())
    return header.encode() + data(name) + f"from {head}\n".encode() + changes + b"\n"


def data(text: str) -> bytes:
    """Return *text* as `git fast-import` reads it."""
    return b"data %d\n%s\n" % (len(text.encode()), text.encode())


def cached(folder: Path, content: bytes | dict[str, bytes]) -> str:
    """Write *content* to the cache of *folder* and return its hash."""
    ending = ""
    if isinstance(content, dict):
        listed = [{"md5": cached(folder, each), "relpath": name} for name, each in sorted(content.items())]
        content, ending = json.dumps(listed).encode(), ".dir"
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + ending
    place = folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        place.write_bytes(content)
    return md5


def outputs(run: int, epochs: int, batches: int) -> Outputs:
    """Return what the run number *run* wrote."""
    noise = random.Random(run)  # noqa: S311  not for security
    params = params_of(run)
    scale = 0.2 + abs(math.log10(float(params["learning_rate"])) + 2.5) + 0.3 * float(params["dropout"])
    losses = [noise.uniform(0.9, 1.1) * scale / math.sqrt(epoch) for epoch in range(1, epochs + 1)]
    plots = {
        f"{metric}.tsv": table(
            ["epoch", "train", "valid"], ((e, v, v * 1.1) for e, v in enumerate(values, 1))
        )
        for metric, values in {
            "Loss": losses,
            "Accuracy": [100 * math.exp(-0.2 - each) for each in losses],
        }.items()
    }
    plots["Learning_Rate.tsv"] = table(["epoch", "train"], ((e, 0.001) for e in range(1, epochs + 1)))
    for split, steps in (("train", epochs * batches), ("valid", epochs * batches // 4)):
        for metric in ("Loss", "Accuracy"):
            rows = ((step, 1, noise.random()) for step in kept_steps(steps))
            plots[f"iterations/{split}/{metric}.tsv"] = table(["step", "epoch", "value"], rows)
    cells = ((i, j, noise.randrange(9) + 90 * (i == j)) for i in range(10) for j in range(10))
    plots["confusion.tsv"] = table(["actual", "predicted", "count"], cells)
    logs = {f"epoch-{epoch}/Loss.log": f"{noise.random()},32\n".encode() for epoch in range(1, 6)}
    metrics = json.dumps({"epoch": epochs, "train": {"Loss": losses[-1]}, "run": run})
    return {
        "artifacts/plots": plots,
        "artifacts/metrics.json": metrics.encode(),
        "artifacts/train": logs,
        "artifacts/valid": {name: content + b"v" for name, content in logs.items()},
    }


def table(header: list[str], rows: Iterable[tuple[float, ...]]) -> bytes:
    """Return a table of tab-separated values."""
    return "\n".join("\t".join(map(str, row)) for row in (header, *rows)).encode() + b"\n"


def kept_steps(steps: int) -> list[int]:
    """Return the steps of *steps* of which a run keeps the values, as `stages.loggers.plots` does."""
    return [step for step in range(steps) if step % (1 << (step // 1024).bit_length()) == 0]


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run git in *folder* and return its output."""
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=True).stdout  # noqa: S603  the user's own git
