"""Random params of a project, and what must hold for each of them.

    python tests/oracle/random_params.py --count 100 --seed 1

`learner check` accepts what `learner run` completes, and nothing else. A run that is killed and started again
has the files of one that is not. `learner evaluate` measures what the history of the run has, and `learner
predict`, the run of a finished project and `learner status` end without an error. The params of a seed are a
function of it; `make long` tries some. A program is needed for each, so this takes five seconds a seed.
"""

import json
import math
import os
import random
import signal
import sys
import time
from dataclasses import dataclass

import numpy as np
from PIL import Image
from seeds import find_changes, try_projects

TOLERANCE = 1e-4
OPTIMIZERS = (
    {"kind": "adam"},
    {"kind": "adamw", "weight_decay": 0.1},
    {"kind": "sgd", "momentum": 0.9},
    {"kind": "rmsprop"},
    {"kind": "adagrad"},
    {"kind": "adan"},
    {"kind": "lion"},
    {"kind": "lamb"},
    {"kind": "muon"},
    {"kind": "lbfgs"},
)
UNPORTABLE = ("rmsprop", "adagrad")
CLIPPING = (
    {"kind": "value", "value": 0.5},
    {"kind": "norm", "max_norm": 0.5},
    {"kind": "global_norm", "max_norm": 0.5},
)
PARTS = {"kind": "exponential", "gamma": 0.9}, {"kind": "constant", "initial": 1.0}
SCHEDULES = (
    {"kind": "constant"},
    {"kind": "linear", "final": 1e-5, "num_iters": "100 %"},
    {"kind": "cosine", "num_iters": 7},
    {"kind": "exponential", "gamma": 0.9},
    {"kind": "step", "step_size": "50 %", "gamma": 0.5},
)
OTHER_SCHEDULES = (
    {"kind": "noam", "warmup_steps": 4, "model_size": 16},
    {"kind": "sequential", "schedulers": [*PARTS], "milestones": [3]},
    {"kind": "composed", "schedulers": [*PARTS]},
    {"kind": "one_cycle", "per": "batch", "max_lr": 0.01, "total_steps": 500},
    {"kind": "multi_step", "per": "epoch", "milestones": [2]},
    {"kind": "reduce_on_plateau", "patience": 0},
)
AVERAGES = ({"kind": "ema", "decay": 0.9}, {"kind": "swa", "start_epoch": 2})
OF_CLASSES = ("accuracy", {"kind": "top_k", "k": 2}, "auroc", "auc_pr", "f_beta", "matthews", "perplexity")
OF_NUMBERS = ("mse", "mae")
OF_MASKS = ("accuracy", {"kind": "mean_iou", "num_classes": 3}, {"kind": "dice", "num_classes": 3})
AUGMENTATIONS = (
    {"kind": "random_crop", "padding": 1},
    {"kind": "horizontal_flip"},
    {"kind": "random_erasing"},
    {"kind": "color_jitter", "brightness": 0.2},
)
RECORDERS = ("compact", "burnpack", "safetensors", "bin", "pretty_json", "named_mpk")
INEXACT = ("compact", "pretty_json")
"""Recorders that round the weights, or their text, so that an evaluation has other digits."""


@dataclass(frozen=True)
class Data:
    """A random data set in a project."""

    source: dict
    """The param ``load_data.source``."""
    new: str | None
    """The inputs of ``learner predict``; None for masks, which it does not write."""
    shape: tuple
    """The shape of an input."""
    classes: int
    """The number of classes; 0 for a regression."""
    has_splits: bool = False
    has_masks: bool = False


def write_data(r, folder):
    """Write random data to *folder*."""
    return r.choice([write_arrays, write_arrays, write_images, write_masks, write_table])(r, folder)


def write_arrays(r, folder):
    """Write an archive of arrays."""
    generator = np.random.default_rng(r.randrange(1 << 30))
    count, classes = r.choice([40, 67, 90]), r.choice([0, 2, 3, 3])
    shape = r.choice([(1, 8, 8), (3, 8, 8), (6,)]) if classes else (5,)
    inputs = generator.normal(size=(count, *shape)).astype(np.float32)
    targets = generator.normal(size=(count, r.choice([1, 2]))).astype(np.float32)
    if classes:
        targets = np.arange(count) % classes
    if len(shape) > 1:
        inputs = generator.integers(0, 256, (count, *shape)).astype(np.uint8)
    cut = count // 3
    has_splits = r.random() < 0.35
    arrays = {"inputs": inputs, "targets": targets}
    if has_splits:
        arrays = {"x_train": inputs[cut:], "y_train": targets[cut:]}
        arrays |= {"x_test": inputs[:cut], "y_test": targets[:cut]}
    np.savez(folder / "data.npz", **arrays)
    np.save(folder / "new.npy", inputs[:cut])
    return Data({"kind": "npz", "path": "data.npz"}, "new.npy", shape, classes, has_splits)


def write_images(r, folder):
    """Write a folder of images for each class."""
    generator, classes = np.random.default_rng(r.randrange(1 << 30)), r.choice([2, 3])
    for number in range(r.choice([40, 61])):
        path = folder / f"images/class{number % classes}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (9, 10, 3)).astype(np.uint8)).save(path)
    mode = r.choice(["gray", "rgb"])
    source = {"kind": "image_folder", "path": "images", "size": [8, 8], "mode": mode}
    return Data(source, "images", (1 if mode == "gray" else 3, 8, 8), classes)


def write_masks(r, folder):
    """Write images and their masks."""
    generator = np.random.default_rng(r.randrange(1 << 30))
    for number in range(r.choice([40, 61])):
        content = generator.integers(0, 256, (8, 8, 3)).astype(np.uint8)
        mask = (content[..., 0] // 100).astype(np.uint8)
        mask[0, 0] = r.choice([0, 255])
        for name, pixels in (("images", content), ("masks", mask)):
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    source = {"kind": "image_folder", "path": "images", "masks": "masks", "ignored": 255}
    return Data(source, None, (3, 8, 8), 3, has_masks=True)


def write_table(r, folder):
    """Write a table with numbers, categories and missing values."""
    classes, lines = r.choice([0, 2, 3]), ["kind,first,second,target"]
    for number in range(r.choice([40, 67])):
        first = "" if r.random() < 0.1 else f"{r.gauss(0, 3):.3f}"
        target = f"class{number % classes}" if classes else f"{r.random():.3f}"
        lines.append(f"{r.choice('abc')},{first},{r.randrange(50)},{target}")
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("\n".join(line for line in lines if ",," not in line) + "\n")
    source = {"kind": "table", "path": "data.csv", "target": "target", "categorical": ["kind"]}
    source["missing"] = r.choice(["mean", "drop"])
    return Data(source, "new.csv", (5,), classes)


def draw(r, data):
    """Return random params for *data*, all but a few of which `learner check` accepts."""
    loading = draw_loading(r, data)
    has_valid = loading.get("valid_fraction") != 0.0
    building = draw_building(r, data, has_valid=has_valid)
    fit = draw_fit(r, data, building["optimizer"]["kind"], has_valid=has_valid)
    saving = draw_saving(r, has_valid=has_valid)
    return {"load_data": loading, "build_learner": building, "fit": fit, "save_model": saving}


def may(r, share, options):
    """Return *options* with the probability *share*, and else nothing."""
    return options if r.random() < share else {}


def draw_loading(r, data):
    """Return the section ``load_data``."""
    loading = {"source": data.source, "seed": r.randrange(99)}
    loading |= may(r, 0.4, {"test_fraction": 0.2}) | may(r, 0.2, {"stratify": False})
    if not data.has_splits:
        loading |= r.choice([{"valid_fraction": 0.25}, {"valid_fraction": 0.0}, {"folds": 3, "fold": 3}])
    kind, per = r.choice(["mean_std", "min_max", "none"]), r.choice(["dataset", "channel"])
    if data.source["kind"] == "image_folder":
        loading |= may(r, 0.5, {"materialize": r.choice(["tensors", "index"])})
    return loading | may(r, 0.4, {"normalization": {"kind": kind, "per": per}})


def draw_building(r, data, *, has_valid):
    """Return the section ``build_learner``."""
    optimizer = r.choice(OPTIMIZERS) | {"learning_rate": 0.01}
    optimizer |= may(r, 0.3, {"clipping": r.choice(CLIPPING)})
    schedule = r.choice(OTHER_SCHEDULES)
    if schedule["kind"] == "reduce_on_plateau" and not has_valid:
        schedule = schedule | {"monitor": "train Loss"}
    if r.random() < 0.6:
        schedule = r.choice(SCHEDULES) | may(r, 0.3, {"warmup": r.choice([3, "10 %"])})
        schedule |= may(r, 0.3, {"per": r.choice(["epoch", "update"])})
    model = {"kind": "mlp" if data.classes else "mlp_regressor", "hidden_sizes": r.choice([[8], [4, 4]])}
    model |= may(r, 0.3, {"dropout": 0.3})
    if data.has_masks:
        model = {"kind": "unet", "channels": [2, 3]}
    elif len(data.shape) > 1 and r.random() < 0.5:
        model = {"kind": "cnn", "hidden_size": 8, "channels": [2, 3], "pool_size": 2}
    building = {"seed": r.randrange(99), "model": model, "optimizer": optimizer, "schedule": schedule}
    building |= may(r, 0.2, {"parameter_groups": [{"match": "bias", "learning_rate": 0.003}]})
    building |= may(r, 0.15, {"freeze": ["weight"]})
    if data.classes:
        building |= may(r, 0.25, {"label_smoothing": 0.1}) | may(r, 0.25, {"class_weights": "balanced"})
    return building


def draw_fit(r, data, optimizer, *, has_valid):
    """Return the section ``fit`` for the kind *optimizer*."""
    measured = r.sample(OF_CLASSES, 3) if data.classes else [*OF_NUMBERS]
    measured = [*OF_MASKS] if data.has_masks else measured
    fit = {
        "num_epochs": r.choice([2, 3, 4]),
        "batch_size": r.choice([7, 8, 16, 33]),
        "num_workers": r.choice([0, 0, 0, 1]),
        "seed": r.randrange(99),
        "device": r.choice(["cpu", "cpu", "cpu", ["cpu", "cpu"]]),
        "num_threads": 1,
        "metrics": ["loss", *measured, *may(r, 0.3, ["learning_rate"])],
    }
    window = {"batches": r.choice([2, 3]), "reduction": r.choice(["mean", "sum"])}
    window["leftover"] = r.choice(["flush", "drop", "carry"])
    fit |= may(r, 0.3, {"grads_accumulation": window}) | may(r, 0.3, {"averaging": r.choice(AVERAGES)})
    fit |= may(r, 0.25, {"limit_batches": r.choice([2, {"train": 3}, {"valid": 1}])})
    fit |= may(r, 0.12, {"overfit_batches": r.choice([1, 2])})
    fit |= may(r, 0.25, {"validate_every": 2}) | may(r, 0.2, {"sanity_check": 2})
    fit |= may(r, 0.2, {"fast_path": "off"}) | may(r, 0.15, {"gradient_checkpointing": True})
    fit |= may(r, 0.2, {"non_finite": {"kind": "skip", "limit": 3}})
    fit |= may(r, 0.15, {"precision": r.choice(["bf16", "fp16"])})
    if "precision" not in fit and optimizer not in UNPORTABLE:
        fit |= may(r, 0.2, {"portable": True})
    stopping = {"metric": "Loss", "n_epochs": 1, "split": "valid" if has_valid else "train"}
    fit |= may(r, 0.25, {"early_stopping": stopping})
    fit |= may(r, 0.25, {"recorder": r.choice(RECORDERS)}) | may(
        r, 0.12, {"burn": r.choice(["0.21", "0.22"])}
    )
    fit |= may(r, 0.4, {"checkpoint_every_steps": r.choice([1, 2, 5])})
    fit |= may(r, 0.15, {"loggers": [r.choice(["tsv", "tensorboard", "json_lines"])]})
    if len(data.shape) > 1:
        fit |= may(r, 0.35, {"augment": r.sample(AUGMENTATIONS, 2)})
    return fit


def draw_saving(r, *, has_valid):
    """Return the section ``save_model``."""
    exports = r.choice([[], [], ["safetensors"], ["burnpack", "model_card"], ["pt2"], ["onnx"]])
    saving = {"exports": exports, "epoch": r.choice(["last", "best"] if has_valid else ["last"])}
    saving |= may(r, 0.2, {"weights": "raw"})
    if exports in (["pt2"], ["onnx"]):
        saving |= may(r, 0.4, {"preprocess": True})
    return saving


def try_params(seed, template, folder):
    """Return what is wrong with the params of *seed* in copies of *template* in *folder*, if anything."""
    r = random.Random(seed)  # noqa: S311
    project = template.copied_to(folder / "whole")
    data = write_data(r, project.folder)
    params = draw(r, data)
    (project.folder / "params.yaml").write_text(json.dumps(params))  # which is YAML too
    project.add_deps()
    killed = project.copied_to(folder / "killed")

    checked, begun = project.call("check"), time.monotonic()
    ran = project.call("run")
    seconds = time.monotonic() - begun
    if checked.code or ran.code:
        is_same = (checked.code == 0) == (ran.code == 0) and "Traceback" not in checked.text + ran.text
        return [] if is_same else [f"check {checked.code}, run {ran.code}: {checked.err}{ran.err}", params]
    problems = kill_and_run(r, project, killed, seconds, folder / "log")
    for split in ("train", "valid") if read_metrics(project).get("valid") else ("train",):
        problems += evaluate(project, split, params)
    predict = [("predict", data.new, "--out", "predictions.csv")] if data.new else []
    for command in (*predict, ("run",), ("status",)):
        done = project.call(*command)
        if done.code or "Traceback" in done.text:
            problems.append(f"learner {command[0]}: {done.text}")
    return [*problems, params] if problems else []


def kill_and_run(r, project, killed, seconds, log):
    """Return how *killed*, which is killed and run again, differs from *project*, which took *seconds*."""
    for _ in range(r.choice([1, 2])):
        program = killed.start_fork("pipeline", "run", log=log)
        time.sleep(seconds * r.uniform(0.2, 0.9))
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    again = killed.call("run")
    if again.code:
        return [f"run again after a kill: {again.text}"]
    outputs = "artifacts", "data", "dvc.lock"
    first, second = project.files(*outputs), killed.files(*outputs)
    changed = find_changes(first, second)
    return [f"other files after a kill: {changed}"] if changed else []


def evaluate(project, split, params):
    """Return how the evaluation of *split* differs from the values that the last epoch of the run has."""
    done = project.call("evaluate", "--source", split, "--json")
    if done.code or "Traceback" in done.text:
        return [f"evaluate {split}: {done.text}"]
    fit, saving = params["fit"], params["save_model"]
    is_other = {"limit_batches", "overfit_batches", "precision", "early_stopping"} & fit.keys()
    is_other = is_other or saving["epoch"] != "last" or "weights" in saving or fit.get("recorder") in INEXACT
    if split == "train" or is_other or fit["num_epochs"] % fit.get("validate_every", 1):
        return []
    recorded = read_metrics(project)["valid"]
    values = json.loads(done.out)["data"]["metrics"]
    different = {
        name: (value, recorded.get(name))
        for name, value in values.items()
        if not is_close(value, recorded.get(name, math.inf))
    }
    return [f"evaluate {split}: {different}"] if different else []


def is_close(value, other):
    """Return whether two values of a metric, which may be NaN, are equal up to rounding."""
    return (math.isnan(value) and math.isnan(other)) or math.isclose(
        value, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE
    )


def read_metrics(project):
    """Return the content of metrics.json."""
    return json.loads((project.folder / "artifacts/metrics.json").read_text())


def prepare(template, _):
    """Return a function that tries the params of a seed in copies of *template*."""
    return lambda seed, folder: try_params(seed, template, folder)


if __name__ == "__main__":
    sys.exit(try_projects(__doc__, "params", 100, prepare))
