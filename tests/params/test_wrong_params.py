"""Wrong params are reported with one message for each mistake and exit code 2, and no output changes."""

import json
import re
from math import inf, nan
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from pipeline.commands.training import parse_source
from pipeline.flows.server_outage import read_seconds
from pipeline.project.params import PARAMS as PARAMS_FILE
from pipeline.project.params import Params, read_params, validate_params
from pipeline.project.params_edit import override_params
from pipeline.project.yaml_files import parse_yaml, read_yaml
from stages.contracts.config import Use
from stages.contracts.errors import ParamsError, StageError
from stages.data import load_source

ROOT = Path(__file__).parents[2]
NOT_A_SCALAR = [[], [1], {"a": 1}]
NOT_A_NUMBER = [True, "", "12", "many", *NOT_A_SCALAR]
WRONG_VALUES = {
    "count": [*NOT_A_NUMBER, None, -1, 0, 1.5, 1e29, 10**400, inf, nan],
    "vocabulary size": [*NOT_A_NUMBER, None, -1, 2, 3.5, 10_000_001, 1e29, inf, nan],
    "count or null": [*NOT_A_NUMBER, -1, 0, 1.5, 1e29, inf, nan],
    "count from 0": [*NOT_A_NUMBER, None, -1, 1.5, 1e29, inf, nan],
    "processes": [*NOT_A_NUMBER, None, -1, 1.5, 1025, 100_000_000, inf, nan],
    "threads": [*NOT_A_NUMBER, -1, 0, 1.5, 1025, 100_000_000, inf, nan],
    "iterations": [*NOT_A_NUMBER, None, 0, 100, 1.5, inf, nan],
    "seed": [*NOT_A_NUMBER, None, 1.5, 2**63, -(2**63) - 1, 1e29, inf, nan],
    "seed of NumPy": [*NOT_A_NUMBER, None, -1, 2**32, 1.5, inf, nan],
    "positive": [*NOT_A_NUMBER, None, -1, 0, 10**400, inf, -inf, nan],
    "positive or null": [*NOT_A_NUMBER, -1, 0, inf, nan],
    "non-negative": [*NOT_A_NUMBER, None, -1e-9, inf, nan],
    "seconds": [*NOT_A_NUMBER, None, -1, 0, 1e10, inf, nan],
    "seconds or null": [*NOT_A_NUMBER, -1, 0, 1e10, inf, nan],
    "share": [*NOT_A_NUMBER, None, 0, 1, -0.1, inf, nan],
    "fraction": [*NOT_A_NUMBER, None, -0.1, 1.1, inf, nan],
    "size or null": [True, 0, -1, 1.5, inf, "", "12", [], [1], [0, 1], [1, True], [1, 1, 1], {"a": 1}],
    "range": [None, True, 1, "", [], [1], [0, 1], [2, 1], [1, nan], [1, 1, 1], {"a": 1}],
    "coefficients": [None, True, 1, "", [], [1, 2], [1, 2, "3"], [1, 2, inf], [1, 2, 3, 4], {"a": 1}],
    "decay": [*NOT_A_NUMBER, None, 1, -0.1, inf, nan],
    "decay or null": [*NOT_A_NUMBER, 1, -0.1, inf, nan],
    "factor": [*NOT_A_NUMBER, None, 0, 1.1, -0.1, inf, nan],
    "flag": [None, 0, 1, 1.0, "", "yes", "true", inf, *NOT_A_SCALAR],
    "flag or name": [None, 0, 1, 1.0, "", "yes", "true", inf, *NOT_A_SCALAR],
    "text": [None, True, 0, 1.5, inf, "", " ", "a\0b", *NOT_A_SCALAR],
    "text or null": [True, 0, inf, "", "a\0b", *NOT_A_SCALAR],
    "null": [True, 0, inf, "", "x", *NOT_A_SCALAR],
    "choice": [None, True, 0, 1e29, nan, "", "x", *NOT_A_SCALAR],
    "version or null": [True, 0, nan, "", "x", 0.2, "0.20", ["0.22"], {"a": 1}],
    "choice or null": [True, 0, nan, "", "x", *NOT_A_SCALAR],
    "0 or 1": [None, True, False, 2, -1, 0.5, nan, "", "1", *NOT_A_SCALAR],
    "section": [None, True, 0, -1, 1e29, inf, "", "x", [], [1]],
    "section of limits": [None, True, "", "x", 0, -1, 1.5, 1e29, inf, [], [1]],
    "section or null": [True, 0, -1, inf, "", "x", [], [1]],
    "part": [None, True, 0, -1, 1e29, inf, "", [], [1], {}, {"kind": ["mlp"]}, {"kind": {"a": "b"}}]
    + [{"kind": kind} for kind in (None, True, 0, "", ":", ":x", "a:", "a b:c", "a:b:c", "unknown")],
    "device": [
        None,
        True,
        0,
        -1,
        1.5,
        inf,
        "",
        "gpu",
        "cuda:x",
        "cuda:-1",
        "auto:0",
        [],
        [1],
        ["cpu", "gpu"],
        ["auto", "cpu"],
        ["all", "cpu"],
    ],
    "span": [
        *NOT_A_NUMBER,
        None,
        -1,
        0,
        1.5,
        1e29,
        10**400,
        inf,
        nan,
        "0 %",
        "101 %",
        "1.5 steps",
        "2 weeks",
    ],
    "span or null": [*NOT_A_NUMBER, -1, 0, 1.5, 1e29, inf, nan, "0 %", "101 %", "1.5 steps", "2 weeks"],
    "counts": [None, True, 1, inf, "", "12", [0], [True], ["1"], [1e29], [nan], [[1]], {"a": 1}],
    "pair": [None, True, 1, "", [], [1], [1, 0], [1, True], [1, "1"], [1, 1, 1], {"a": 1}],
    "pair or null": [True, 1, "", [], [1], [1, 0], [1, True], [1, "1"], [1, 1, 1], {"a": 1}],
    "names": [None, True, 1, "", "x", [""], [1], [True], [".."], ["a/b"], ["a\0"], [["a"]], {"a": 1}],
    "choices": [None, True, 1, "", "safetensors", [""], ["x"], [1], [None], [["burnpack"]], {"a": 1}],
    "texts": [None, True, 1, "", "x", [""], [1], [None], [["a"]], {"a": 1}],
    "spellings or null": [True, 1, "", "x", [1], [None], [["a"]], {"a": 1}],
    "character or null": [True, 1, "", ";;", '"', "\n", "§", ["a"], {"a": 1}],
    "names of arrays or null": [True, 1, "", "a\0b", [], [""], [1], [None], [["a"]], {"a": 1}],
    "names of arrays": [None, True, 1, "", "a\0b", [], [""], [1], [None], [["a"]], {"a": 1}],
    "class of a mask": [*NOT_A_NUMBER, None, -101, 1.5, 1e29, inf, nan],
    "value of a mask or null": [*NOT_A_NUMBER, -1, 256, 1.5, inf, nan],
    "texts or null": [True, 1, "", "x", [""], [1], [None], [["a"]], {"a": 1}],
    "finite": [*NOT_A_NUMBER, None, 10**400, inf, -inf, nan],
    "patterns": [None, True, 1, "", "x", [""], [1], [None], ["("], ["a", "*"], [["a"]], {"a": 1}],
    "one or more patterns": [None, True, 1, "", [], [""], [1], [None], "(", ["a", "*"], [["a"]], {"a": 1}],
    "class weights": [True, 1, "", "x", [], [1], [1, -1], [1, inf], [0, 0], ["1", "2"], [[1]], {"a": 1}],
    "renames": [None, True, "x", ["ab"], [1], [["a"]], [["a", 1]], [["(", ""]], [["a", "\\1"]], {"a": "b"}],
    "sections": [None, True, 1, inf, "", "x", [1], [None], [True], ["x"], [{"unknown": 1}], {"a": 1}],
    "parts": [None, True, 1, "", "loss", [1], [None], [""], ["x"], [[]], [{}], [{"kind": ["loss"]}]],
}
WRONG_VALUES["part or null"] = [value for value in WRONG_VALUES["part"] if value is not None]
OPTIMIZER = {"learning_rate": "positive", "clipping": "section or null"}
ADAM = {"beta_1": "decay", "beta_2": "decay", "epsilon": "positive", "amsgrad": "flag"}
BETAS = {"beta_1": "decay", "beta_2": "decay"}
CAUTIOUS = "cautious_weight_decay"
RULE = {"initial": "positive or null", "per": "choice", "warmup": "span or null"}
RECORDER = {"precision": "choice or null", "compression": "0 or 1"}
SHARES = {"epsilon": "positive", "weight_decay": "non-negative"}
PARAMS = [
    ("create_artifact_dir", {}, {"keep": "names"}),
    (
        "load_data",
        {},
        {
            "source": "part",
            "valid_fraction": "decay",
            "test_fraction": "decay",
            "folds": "count or null",
            "fold": "count",
            "stratify": "flag",
            "seed": "seed of NumPy",
        }
        | {"materialize": "choice", "normalization": "section"},
    ),
    ("load_data.normalization", {}, {"kind": "choice", "per": "choice"}),
    ("load_data.source", {"kind": "digits"}, {"path": "null"}),
    ("load_data.source", {"kind": "idx", "path": "x"}, {"path": "text"}),
    (
        "load_data.source",
        {"kind": "npz", "path": "x", "inputs": "y"},
        {"path": "text", "inputs": "names of arrays or null", "targets": "names of arrays or null"},
    ),
    (
        "load_data.source",
        {"kind": "npy", "inputs": "x", "targets": "y"},
        {"inputs": "text", "targets": "text"},
    ),
    (
        "load_data.source",
        {"kind": "image_folder", "path": "x"},
        {
            "path": "text",
            "labels": "text or null",
            "size": "pair or null",
            "mode": "choice",
            "corrupt": "choice",
            "masks": "text or null",
            "boxes": "text or null",
        },
    ),
    (
        "load_data.source",
        {"kind": "image_folder", "path": "x", "masks": "y"},
        {"ignored": "value of a mask or null"},
    ),
    (
        "build_learner.model",
        {"kind": "unet"},
        {"channels": "counts"},
    ),
    (
        "load_data.source",
        {"kind": "table", "path": "x", "target": "y"},
        {
            "path": "text",
            "target": "names of arrays",
            "features": "texts or null",
            "categorical": "texts",
            "encoding": "choice",
            "missing": "choice",
            "fill": "finite",
            "task": "choice or null",
            "delimiter": "character or null",
            "decimal": "choice",
            "missing_values": "spellings or null",
            "header": "flag",
            "valid_path": "text or null",
            "test_path": "text or null",
            "split": "text or null",
            "group": "text or null",
        },
    ),
    (
        "load_data.source",
        {"kind": "text", "path": "x"},
        {
            "path": "text",
            "text": "text",
            "label": "text",
            "tokenizer": "text",
            "vocabulary_size": "vocabulary size",
            "max_length": "count",
            "valid_path": "text or null",
            "test_path": "text or null",
            "split": "text or null",
            "group": "text or null",
        },
    ),
    (
        "load_data.source",
        {"kind": "huggingface", "path": "x", "inputs": "x"},
        {
            "path": "text",
            "inputs": "names of arrays",
            "targets": "names of arrays or null",
            "splits": "texts or null",
            "config": "text or null",
            "revision": "text or null",
            "size": "pair or null",
            "mode": "choice",
            "box_format": "choice",
            "tokenizer": "text",
            "vocabulary_size": "vocabulary size",
            "max_length": "count",
        },
    ),
    ("load_data.source", {"kind": "dataset", "factory": "a:b"}, {"factory": "part", "lazy": "flag"}),
    (
        "build_learner",
        {},
        {
            "seed": "seed",
            "model": "part",
            "optimizer": "part",
            "schedule": "part",
            "checkpoint": "section or null",
            "parameter_groups": "sections",
            "freeze": "patterns",
            "label_smoothing": "decay",
            "class_weights": "class weights",
        },
    ),
    (
        "build_learner.checkpoint",
        {"path": "x"},
        {"epoch": "count or null", "weights_only": "flag", "limit": "count or null", "path": "text or null"}
        | {"key": "text or null", "prefix": "text or null", "strict": "flag", "layout": "choice or null"}
        | {"rename": "renames", "only": "patterns", "skip": "patterns"},
    ),
    ("build_learner.checkpoint", {"rev": "a" * 40, "epoch": 1}, {"rev": "text or null"}),
    (
        "build_learner.model",
        {"kind": "cnn"},
        {
            "channels": "pair",
            "kernel_size": "count",
            "pool_size": "count",
            "hidden_size": "count",
            "dropout": "decay",
        },
    ),
    ("build_learner.model", {"kind": "mlp"}, {"hidden_sizes": "counts", "dropout": "decay"}),
    ("build_learner.model", {"kind": "mlp_regressor"}, {"hidden_sizes": "counts", "dropout": "decay"}),
    ("build_learner.optimizer", {"kind": "adam"}, OPTIMIZER | ADAM | SHARES),
    ("build_learner.optimizer", {"kind": "adamw"}, OPTIMIZER | ADAM | SHARES | {CAUTIOUS: "flag"}),
    (
        "build_learner.optimizer",
        {"kind": "sgd"},
        OPTIMIZER
        | {"momentum": "decay or null", "dampening": "decay", "nesterov": "flag"}
        | {"weight_decay": "non-negative"},
    ),
    (
        "build_learner.optimizer",
        {"kind": "rmsprop"},
        OPTIMIZER | SHARES | {"alpha": "decay", "momentum": "decay", "centered": "flag"},
    ),
    ("build_learner.optimizer", {"kind": "adagrad"}, OPTIMIZER | SHARES | {"lr_decay": "non-negative"}),
    (
        "build_learner.optimizer",
        {"kind": "muon"},
        OPTIMIZER
        | SHARES
        | {"momentum": "decay", "dampening": "decay", "nesterov": "flag", "ns_steps": "iterations"}
        | {"ns_coefficients": "coefficients", "adjust_lr": "choice", "others": "section"},
    ),
    (
        "build_learner.optimizer",
        {"kind": "adan"},
        OPTIMIZER | SHARES | BETAS | {"beta_3": "decay", "no_prox": "flag"},
    ),
    ("build_learner.optimizer", {"kind": "lion"}, OPTIMIZER | BETAS | {"weight_decay": "non-negative"}),
    ("build_learner.optimizer", {"kind": "lamb"}, OPTIMIZER | SHARES | BETAS | {"use_trust_ratio": "flag"}),
    ("build_learner.optimizer.others", {"kind": "adamw"}, ADAM | {CAUTIOUS: "flag"}),
    (
        "build_learner.optimizer",
        {"kind": "lbfgs"},
        OPTIMIZER
        | {"max_iter": "count", "max_eval": "count or null", "history_size": "count"}
        | {"tolerance_grad": "positive", "tolerance_change": "positive", "line_search": "choice or null"},
    ),
    ("build_learner.optimizer.clipping", {"kind": "value", "value": 1}, {"value": "positive"}),
    ("build_learner.optimizer.clipping", {"kind": "norm", "max_norm": 1}, {"max_norm": "positive"}),
    ("build_learner.optimizer.clipping", {"kind": "global_norm", "max_norm": 1}, {"max_norm": "positive"}),
    ("build_learner.schedule", {"kind": "constant"}, RULE),
    (
        "build_learner.schedule",
        {"kind": "linear", "final": 1, "num_iters": 1},
        RULE | {"final": "non-negative", "num_iters": "span"},
    ),
    (
        "build_learner.schedule",
        {"kind": "cosine", "num_iters": 1},
        RULE | {"min": "non-negative", "num_iters": "span"},
    ),
    ("build_learner.schedule", {"kind": "exponential", "gamma": 0.5}, RULE | {"gamma": "factor"}),
    ("build_learner.schedule", {"kind": "noam"}, RULE | {"warmup_steps": "span", "model_size": "count"}),
    (
        "build_learner.schedule",
        {"kind": "step", "step_size": 1},
        RULE | {"step_size": "span", "gamma": "positive"},
    ),
    (
        "build_learner.schedule",
        {"kind": "composed", "schedulers": [{"kind": "constant"}]},
        RULE | {"schedulers": "sections", "reduction": "choice"},
    ),
    (
        "build_learner.schedule",
        {"kind": "sequential", "schedulers": [{"kind": "constant"}] * 2, "milestones": [1]},
        RULE | {"schedulers": "sections", "milestones": "counts"},
    ),
    ("fit.limit_batches", {}, {"train": "count or null", "valid": "count or null"}),
    (
        "fit",
        {},
        {
            "num_epochs": "count",
            "batch_size": "count",
            "batcher": "part",
            "augment": "parts",
            "bucket": "flag",
            "views": "count",
            "limit_batches": "section of limits",
            "overfit_batches": "count or null",
            "sanity_check": "count from 0",
            "validate_every": "count",
            "num_workers": "processes",
            "prefetch": "processes",
            "resident": "flag or name",
            "seed": "seed",
            "device": "device",
            "strategy": "choice",
            "sync_batch_norm": "flag",
            "max_restarts": "count from 0",
            "rank_timeout_seconds": "seconds",
            "num_threads": "threads",
            "grads_accumulation": "section",
            "deterministic": "flag",
            "portable": "flag",
            "precision": "choice",
            "compile": "flag or name",
            "fast_path": "choice",
            "step": "choice",
            "averaging": "section or null",
            "hooks": "parts",
            "gradient_checkpointing": "flag",
            "non_finite": "section",
            "early_stopping": "section or null",
            "keep": "section",
            "recorder": "section",
            "burn": "version or null",
            "checkpoint_every_steps": "count or null",
            "checkpoint_every_seconds": "seconds or null",
            "max_unsaved_seconds": "seconds",
            "metrics": "parts",
            "telemetry": "parts",
            "loggers": "parts",
        },
    ),
    (
        "fit.augment.0",
        {"kind": "random_crop"},
        {
            "padding": "count from 0",
            "size": "size or null",
            "fill": "finite",
            "mask_fill": "class of a mask",
        },
    ),
    ("fit.augment.0", {"kind": "horizontal_flip"}, {"p": "fraction"}),
    ("fit.augment.0", {"kind": "vertical_flip"}, {"p": "fraction"}),
    (
        "fit.augment.0",
        {"kind": "random_erasing"},
        {"p": "fraction", "scale": "range", "ratio": "range", "value": "finite"},
    ),
    (
        "fit.augment.0",
        {"kind": "color_jitter"},
        {"brightness": "non-negative", "contrast": "non-negative"},
    ),
    ("fit.grads_accumulation", {}, {"batches": "count", "reduction": "choice", "leftover": "choice"}),
    ("fit.averaging", {"kind": "ema"}, {"decay": "decay", "start_epoch": "count"}),
    ("fit.averaging", {"kind": "swa", "start_epoch": 2}, {"start_epoch": "count"}),
    ("fit.non_finite", {}, {"limit": "count"}),
    (
        "fit.early_stopping",
        {"n_epochs": 1},
        {
            "n_epochs": "count",
            "metric": "text",
            "split": "choice",
            "direction": "choice",
            "min_delta": "non-negative",
            "warmup_epochs": "count from 0",
        },
    ),
    ("fit.keep", {}, {"last": "count", "best": "sections"}),
    ("fit.keep.best.0", {}, {"metric": "text", "split": "choice", "direction": "choice"}),
    ("fit.recorder", {}, RECORDER),
    (
        "save_model",
        {},
        {"recorder": "section", "exports": "choices", "epoch": "choice", "weights": "choice"}
        | {"best": "section or null", "preprocess": "flag", "license": "text or null"},
    ),
    ("save_model.best", {}, {"metric": "text", "split": "choice", "direction": "choice"}),
    ("save_model.recorder", {}, RECORDER),
]
PARTS = [
    ("build_learner.optimizer", {"kind": "nadam"}, OPTIMIZER | {"learning_rate": "positive or null"}),
    (
        "build_learner.parameter_groups.0",
        {"match": "x"},
        {"match": "one or more patterns", "optimizer": "part or null", "schedule": "part or null"},
    ),
    ("build_learner.schedule", {"kind": "reduce_on_plateau"}, {"monitor": "text or null"}),
    ("build_learner.schedule", {"kind": "one_cycle", "per": "batch"}, {"per": "choice or null"}),
]
"""Sections of which every further key is an argument of a class."""
ROWS = [(path, base, key, shape) for path, base, keys in PARAMS + PARTS for key, shape in keys.items()]


def build_content(path, value):
    """Return params in which *path* is *value*; a number in it is the index of a list of one item."""
    *outer, last = path.split(".")
    for key in reversed([*outer, last]):
        value = [value] if key.isdigit() else {key: value}
    if path.startswith("build_learner.optimizer."):  # these sections are fields of a kind of optimizer
        value["build_learner"]["optimizer"]["kind"] = "muon"
    return value


def write_params(folder, content):
    """Write *content* to params.yaml in *folder* and return its path."""
    path = folder / "params.yaml"
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    with path.open("w") as file:
        yaml.dump(content, file)
    return path


def read_mistakes(path):
    """Return the first line of each mistake that reading *path* reports."""
    return list_mistakes(read_yaml(path), path)


def list_mistakes(content, path=PARAMS_FILE):
    """Return the first line of each mistake in *content*, which takes a tenth of reading it from a file."""
    with pytest.raises(ParamsError) as caught:
        validate_params(content, path)
    assert caught.value.exit_code == 2
    first, *lines = str(caught.value).splitlines()
    assert first == f"{path} is not valid:"
    return [line for line in lines if not line.startswith("    ")]


@pytest.mark.parametrize(
    ("path", "base", "key", "shape"),
    ROWS,
    ids=[f"{row[0]}:{row[1].get('kind', '')}.{row[2]}" for row in ROWS],
)
def test_each_param_refuses_each_wrong_value_with_one_message(path, base, key, shape):
    validate_params(build_content(path, base), PARAMS_FILE)

    for value in WRONG_VALUES[shape]:
        found = list_mistakes(build_content(path, base | {key: value}))

        assert len(found) == 1, (value, found)
        assert f"{path}.{key}" in found[0], (value, found)
        assert "Input" not in found[0], (value, found)
        assert ". ." not in found[0], (value, found)


def test_each_wrong_value_is_read_from_a_file_as_it_is(tmp_path):
    content = read_yaml(write_params(tmp_path, WRONG_VALUES))

    assert {*map(repr, content.items())} == {*map(repr, WRONG_VALUES.items())}


@pytest.mark.parametrize("name", ["unknown", "kid"])
def test_unknown_key_is_refused_with_the_known_keys_of_its_section(name):
    for path, base, keys in PARAMS:
        (line,) = list_mistakes(build_content(path, base | {name: 1}))
        assert line.startswith(f"  {path}.{name}: unknown key.")
        assert set(line.partition(" Known: ")[2].split(", ")) >= set(keys)


def find_config_classes(annotation):
    """Return the config classes in *annotation*, and in their fields."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = [field.annotation for field in annotation.model_fields.values()]
        return {annotation}.union(*map(find_config_classes, fields))
    return set().union(*map(find_config_classes, get_args(annotation)))


def test_every_param_of_every_section_is_in_the_table():
    tested = set()
    for path, base, keys in PARAMS + PARTS:
        config = validate_params(build_content(path, base), PARAMS_FILE)
        for name in path.split("."):
            config = config[int(name)] if name.isdigit() else getattr(config, name)
        tested |= {(type(config), key) for key in keys}

    classes = find_config_classes(Params) - {Params, Use}
    params = {(each, name) for each in classes for name in each.model_fields if name != "kind"}
    assert params <= tested, params - tested


ACCEPTED_VALUES = {
    "fit.num_epochs": [1e3, 1.0, 10**9],
    "fit.num_workers": [0, 1024],
    "fit.prefetch": [0, 2, 1024],
    "fit.resident": ["auto", True, False],
    "fit.num_threads": [None, 1, 1024],
    "fit.device": ["cpu", "cuda", "cuda:7", "mps", "all", ["cpu", "cpu"]],
    "fit.strategy": ["auto", "ddp", "fsdp", "DistributedDataParallel", "OptimMainDevice", "OptimSharded"],
    "fit.max_restarts": [0, 3],
    "fit.rank_timeout_seconds": [1, 600.0],
    "fit.checkpoint_every_seconds": [None, 1, 1e9],
    "build_learner.seed": [-1, 2**63 - 1],
    "build_learner.model": ["my_lab:Net", {"kind": "a.b:C.d", "x": [1, {"y": None}]}],
    "create_artifact_dir.keep": [["notes.txt", ".hidden"]],
}


@pytest.mark.parametrize("path", ACCEPTED_VALUES)
def test_values_within_the_bounds_are_accepted(path, tmp_path):
    section, key = path.split(".")

    for value in ACCEPTED_VALUES[path]:
        accepted = getattr(
            getattr(read_params(write_params(tmp_path, build_content(path, value))), section), key
        )

        if not isinstance(value, dict | str | list):
            assert accepted == value
        if key in ("num_epochs", "num_workers"):
            assert type(accepted) is int


MODEL = "  model:\n    kind: cnn\n    dropout: 0.5"
SCHEDULE = "  schedule:\n    kind: constant"
MISSPELLED_SCHEDULE = (
    "schedule: {kind: sequential, milestones: [3], schedulers: [{kind: linear, final: 0, num_iter: 3}]}"
)
UNKNOWN_KEY = "unknown key. Did you mean 'num_iters'? Known: initial, per, warmup, kind, final, num_iters"
PLAIN_VALUE = "must be null, a boolean, a finite number, a string, or a list or a mapping of these"
IMPORT_PATH_ADVICE = "Write 'package.module:Name', for example 'my_lab.parts:Name'"
MISTAKES = {
    "kind in a list": (
        "kind: cnn",
        "kind: [mlp]",
        "build_learner.model.kind: must be a string that is not empty; found the list ['mlp']",
    ),
    "kind in a mapping": (
        "kind: cnn",
        "kind: {a: b}",
        "build_learner.model.kind: must be a string that is not empty; found the mapping {'a': 'b'}",
    ),
    "import path without a module": (
        "kind: cnn",
        'kind: ":x"',
        f"build_learner.model: model ':x' is not an import path. {IMPORT_PATH_ADVICE}",
    ),
    "import path without a name": (
        "metrics: [loss, accuracy]",
        'metrics: ["a.b:"]',
        f"fit.metrics.0: metric 'a.b:' is not an import path. {IMPORT_PATH_ADVICE}",
    ),
    "misspelled kind": (
        "kind: adam",
        "kind: adm",
        "build_learner.optimizer: no optimizer is named 'adm'. Did you mean 'adam'?",
    ),
    "schedule that is not a mapping": (
        SCHEDULE,
        "  schedule: cosin",
        "build_learner.schedule: no schedule is named 'cosin'. Did you mean 'cosine'?",
    ),
    "model that is not a mapping": (
        MODEL,
        "  model: mlp",
        "build_learner.model: must be a mapping; found 'mlp'. Write {kind: mlp}",
    ),
    "misspelled choice": (
        "epoch: last",
        "epoch: lst",
        "save_model.epoch: must be 'last' or 'best'; found 'lst'. Did you mean 'last'?",
    ),
    "misspelled required key in a nested section": (
        SCHEDULE,
        f"  {MISSPELLED_SCHEDULE}",
        f"build_learner.schedule.schedulers.0.num_iter: {UNKNOWN_KEY}",
    ),
    "missing required key": (
        "kind: digits\n    path: null",
        "kind: npz",
        "load_data.source.path: the key is missing. Set it",
    ),
    "null for a key with a default": (
        "num_epochs: 20",
        "num_epochs: null",
        "fit.num_epochs: must be an integer from 1 to 1000000000; found null. Remove the key for its default",
    ),
    "number as a string": (
        "num_epochs: 20",
        'num_epochs: "12"',
        "fit.num_epochs: must be an integer from 1 to 1000000000; found '12'",
    ),
    "date": (
        "num_epochs: 20",
        "num_epochs: 2026-01-01",
        "fit.num_epochs: must be an integer from 1 to 1000000000; found datetime.date(2026, 1, 1)",
    ),
    "too many threads": (
        "num_threads: 1",
        "num_threads: 100000000",
        "fit.num_threads: must be an integer from 1 to 1024; found 100000000",
    ),
    "infinity": (
        "learning_rate: 0.001",
        "learning_rate: .inf",
        "build_learner.optimizer.learning_rate: must be a finite number above 0; found .inf",
    ),
    "name instead of a list": (
        "metrics: [loss, accuracy]",
        "metrics: loss",
        "fit.metrics: must be a list; found 'loss'. Write [loss]",
    ),
    "unknown device": (
        "device: auto",
        "device: gpu",
        "fit.device: no device is named 'gpu'. Write auto, all, cpu, cuda, cuda:N or mps",
    ),
    "number as a key": ("num_epochs: 20", "1: 20", "fit: keys must be strings; found 1"),
    "unknown section": ("epoch: last", "epoch: last\nfit_: 1", "fit_: unknown key."),
    "infinity in an argument": (
        "kind: cnn\n    dropout: 0.5",
        'kind: "my_lab:Net"\n    limit: .inf',
        f"build_learner.model: the argument 'limit' {PLAIN_VALUE}; found inf",
    ),
    "argument that contains itself": (
        "kind: cnn\n    dropout: 0.5",
        'kind: "my_lab:Net"\n    self: &me {x: *me}',
        f"build_learner.model: the argument 'self' {PLAIN_VALUE}; found {{'x': {{...}}}}",
    ),
}


def write_edited_params(folder, old, new):
    """Write the params of this repository to *folder*, with *new* instead of *old*, and return the path."""
    text = (ROOT / "params.yaml").read_text()
    assert old in text
    path = folder / "params.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_reported_with_its_key_the_value_found_and_advice(old, new, message, tmp_path):
    (line,) = read_mistakes(write_edited_params(tmp_path, old, new))

    assert line.startswith(f"  {message}")


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("batches: 1", "batches: 4", "accumulate over 4 batches"),
        ("device: auto", "device: [cpu, cpu]", "use 2 ranks"),
    ],
)
def test_optimizer_that_evaluates_a_batch_several_times_takes_no_part_of_one(old, new, mistake, tmp_path):
    """The check finds before any stage runs what the learner would refuse in fit."""
    path = write_edited_params(tmp_path, old, new)
    path.write_text(
        path.read_text().replace("kind: adam", "kind: lbfgs").replace("portable: true", "portable: false")
    )

    (line,) = read_mistakes(path)

    assert f"L-BFGS evaluates one batch several times, so it cannot {mistake}: use one device" in line


INVALID_YAML = {
    "unknown tag": (
        "num_epochs: !foo 20",
        "line 26, column 15: the tag '!foo' is not supported. Remove it; name a class of",
    ),
    "tag of a Python object": (
        "num_epochs: !!python/object:os.system 20",
        "line 26, column 15: the tag '!!python/object:os.system' is",
    ),
    "duplicate key": (
        "num_epochs: 20\n  num_epochs: 3",
        'line 27, column 3: found duplicate key "num_epochs"',
    ),
    "unclosed list": ("num_epochs: [20", "line 27, column 13: did not find expected"),
    "undefined alias": ("num_epochs: *x", "line 26, column 15: found undefined alias"),
    "impossible date": ("num_epochs: 2026-13-45", "a value cannot be read: month must be in 1..12"),
    "invalid integer": ("num_epochs: !!int x", "a value cannot be read: invalid literal for int()"),
    "invalid boolean": ("num_epochs: !!bool x", "a value cannot be read: 'x'"),
    "too many digits": ("num_epochs: " + "9" * 5000, "a value cannot be read: Exceeds the limit"),
    "control character": ("num_epochs: \x01", "control characters are not allowed"),
}


@pytest.mark.parametrize(("new", "message"), INVALID_YAML.values(), ids=INVALID_YAML)
def test_invalid_yaml_is_reported_in_one_line(new, message, tmp_path):
    path = write_edited_params(tmp_path, "num_epochs: 20", new)

    with pytest.raises(ParamsError) as caught:
        read_params(path)

    assert str(caught.value).startswith(f"{path} is not valid YAML: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# only comments\n",
            "has no params. Write a section for each stage: create_artifact_dir, load_data",
        ),
        ("", "has no params. Write a section for each stage"),
        ("- fit\n", "must have a section for each stage; found the list ['fit']"),
        ("fit\n", "must have a section for each stage; found 'fit'"),
    ],
)
def test_file_without_sections_is_refused(text, message, tmp_path):
    path = tmp_path / "params.yaml"
    path.write_text(text)

    with pytest.raises(ParamsError, match=re.escape(f"{path} {message}")):
        read_params(path)


LATE_MISTAKES = {
    "file without params": (
        None,
        "# a comment\n",
        "params.yaml has no params. Write a section for each stage: ",
    ),
    "missing section": ("  epoch: last\n", "", "save_model: the key is missing, and the stage save-model in"),
    "suffix of another format": (
        "recorder: default",
        "recorder: bin",
        "'bin' writes files that end in .bin; found",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), LATE_MISTAKES.values(), ids=LATE_MISTAKES)
def test_params_of_the_last_stage_are_validated_before_the_first_stage_runs(old, new, message, finished):
    before = finished.files("artifacts", "data", "dvc.lock")
    path = finished.folder / "params.yaml"
    text = path.read_text()
    if not new:
        text = text.partition("save_model:")[0]
    path.write_text(text.replace(old, new) if old else new)

    for command in ("check", "run"):
        refused = finished.call(command)
        assert (refused.code, refused.out) == (2, "")
        assert message in refused.err
        assert "Traceback" not in refused.err

    refused = finished.dvc("repro")
    assert refused.code != 0
    assert "Running stage 'load-data'" not in refused.text
    assert finished.files("artifacts", "data", "dvc.lock") == before


OVERRIDES = {
    "fit.num_epochs=true": "fit.num_epochs: must be an integer from 1 to 1000000000; found true",
    "fit.num_epochs='12'": "fit.num_epochs: must be an integer from 1 to 1000000000; found '12'",
    "fit.num_epochs=1e29": "fit.num_epochs: must be an integer from 1 to 1000000000; found 1e+29",
    "build_learner.optimizer.learning_rate=inf": "must be a finite number above 0; found .inf",
    "build_learner.model.kind=[mlp]": "must be a string that is not empty; found the list ['mlp']",
    "build_learner.model.kind=':x'": "model ':x' is not an import path",
    "fit=3": "fit: must be a mapping; found 3",
    "~save_model": "save_model: the key is missing",
    "save_model.recorder=bin": "'bin' writes files that end in .bin",
    "fit.nope=3": "Could not override 'fit.nope'. To append to your config use +fit.nope=3",
    "fit.num_epochs": "missing EQUAL",
    "fit.num_epochs=[1": "no viable alternative at input '[1'",
    "fit.num_epochs=${x}": "Interpolation key 'x' not found",
    "": "mismatched input",
    "++=1": "'': unknown key",
}


@pytest.mark.parametrize(("override", "message"), OVERRIDES.items())
def test_overrides_are_validated_like_params(override, message, monkeypatch):
    monkeypatch.chdir(ROOT)

    with pytest.raises(ParamsError) as caught:
        override_params([override])

    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


NETS = """
from torch import nn
from stages.models import ClassificationStep

class Net(ClassificationStep, nn.Module):
    def __init__(self, input_shape, num_classes, first, second):
        super().__init__()
"""
FIRST, SECOND = "build_learner.model.first", "build_learner.model.second"


@pytest.fixture
def override_blocks(tmp_path, monkeypatch):
    """Return a function that sets overrides in a params.yaml whose model has two mappings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("nets.py").write_text(NETS)
    Path("dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())

    def override(first, second, *overrides):
        text = (ROOT / "params.yaml").read_text()
        model = f"    kind: nets:Net\n    first: {first}\n    second: {second}\n"
        Path("params.yaml").write_text(text.replace("    kind: cnn\n    dropout: 0.5\n", model))
        found = parse_yaml(override_params(overrides), "params.yaml")["build_learner"]["model"]
        return json.dumps((found["first"], found["second"]), sort_keys=True)

    return override


@pytest.mark.parametrize(
    ("override", "result"),
    [
        (f"{FIRST}.width=16", ({"width": 16}, {"depth": 1, "width": 8})),
        (f"{SECOND}.width=16", ({"width": 8}, {"depth": 1, "width": 16})),
        ("fit.num_epochs=3", ({"width": 8}, {"depth": 1, "width": 8})),
    ],
)
def test_override_of_a_mapping_does_not_change_one_that_merges_it(override_blocks, override, result):
    assert override_blocks("&block {width: 8}", "{<<: *block, depth: 1}", override) == json.dumps(result)


@pytest.mark.parametrize(
    ("second", "override"),
    [
        ("*block", f"{FIRST}.width=16"),
        ("*block", f"{SECOND}.width=16"),
        ("{<<: *block}", f"+{FIRST}.depth=1"),
        ("{<<: *block}", f"~{SECOND}.width"),
    ],
)
def test_override_that_needs_a_copy_of_an_anchor_is_an_error(override_blocks, second, override):
    with pytest.raises(ParamsError, match=r"model\.(first|second)\.\w+ shares its value .* a YAML anchor"):
        override_blocks("&block {width: 8}", second, override)


def test_override_beside_a_value_that_contains_itself_is_an_error(override_blocks):
    with pytest.raises(ParamsError, match="a value contains itself through a YAML alias"):
        override_blocks("&block {width: *block}", "{}", "fit.num_epochs=3")


def test_override_of_another_key_keeps_an_alias(override_blocks):
    assert override_blocks("&block {width: 8}", "*block", "fit.num_epochs=3") == json.dumps(
        [{"width": 8}] * 2
    )


@pytest.mark.parametrize(
    ("value", "override"), [("2", "2.0"), ("1.0", "1"), ("[0, 1]", "[false, true]"), ("{k: 1}", "{k: 1.0}")]
)
def test_override_with_an_equal_value_of_another_type_is_written(override_blocks, value, override):
    found = override_blocks(f"{{a: {value}}}", "{}", f"{FIRST}.a={override.replace(': ', ':')}")

    assert found == json.dumps([parse_yaml(f"a: {override}", "test"), {}])


@pytest.mark.parametrize("text", ["abc", "nan", "inf", "-1", "1e10"])
def test_duration_in_an_environment_variable_must_be_finite(text, monkeypatch):
    monkeypatch.setenv("LEARNER_WAIT_SECONDS", text)

    with pytest.raises(ParamsError, match=f"LEARNER_WAIT_SECONDS is '{text}'. Set it to a number of seconds"):
        read_seconds("LEARNER_WAIT_SECONDS", 1.0)


@pytest.mark.parametrize("option", ["--interval=inf", "--timeout=inf"])
def test_duration_in_an_option_must_be_finite(option, open_project, tmp_path):
    refused = open_project(tmp_path).call("serve", option)

    assert (refused.code, "Traceback" in refused.err) == (2, False)
    assert f"error: {option.replace('=', ' is ')}. Set it to a finite number of seconds" in refused.err


@pytest.mark.parametrize("source", ["", "idx", "npz:", "idx: ", ":x", "a b:c"])
def test_unknown_source_of_evaluate_is_refused(source):
    with pytest.raises(StageError, match="--source|is not an import path"):
        load_source(parse_source(source))


@pytest.mark.parametrize("variable", ["LEARNER_RENDERER", "LEARNER_PREFECT"])
def test_wrong_environment_variable_is_reported_before_the_first_stage(variable, project):
    refused = project.call("run", **{variable: "x"})

    assert (refused.code, refused.out) == (2, "")
    assert f"error: {variable} is 'x'" in refused.err
    assert not (project.folder / "artifacts").exists()
