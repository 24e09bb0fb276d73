"""Mistakes in the user's code are reported in one message with file and line, and results do not change."""

import importlib
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from long_tests import cases
from ruamel.yaml import YAML

from pipeline import cli
from pipeline.engine.stage_run import run_stage
from stages.contracts.errors import KilledError, RunInterruptedError, UserCodeError
from stages.renderers import NoRenderer

ROOT = Path(__file__).parents[3]
PACKAGES = ("pipeline", "stages")
PARAMS = """
create_artifact_dir: {{keep: []}}
load_data:
  source: {source}
build_learner:
  model: {model}
  optimizer: {{kind: adam}}
fit:
  num_epochs: 1
  batch_size: 4
  num_workers: {workers}
  device: cpu
  num_threads: 1
  batcher: {batcher}
  metrics: {metrics}
save_model: {{recorder: default}}
"""
DEFAULTS = {
    "source": "{kind: npz, path: data.npz}",
    "model": "{kind: mlp, hidden_sizes: [4]}",
    "workers": "0",
    "batcher": "normalize",
    "metrics": "[loss]",
}
MODULE_HEAD = """import sys
import torch
from torch import nn
from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.metrics import LossMetric
from stages.models import ClassificationStep, Mlp, backward
"""
FIRST_LINE = MODULE_HEAD.count("\n") + 1
"""The line of the user's module at which the code of a case begins."""


class InProcessProject:
    """A project in the current folder whose stages run in this process."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, code="", **params):
        (self.folder / "mine.py").write_text(MODULE_HEAD + code)
        (self.folder / "params.yaml").write_text(PARAMS.format(**DEFAULTS | params))
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()

    def files(self):
        artifacts = self.folder / "artifacts"
        paths = [*artifacts.rglob("*"), *(self.folder / "data").rglob("*")]
        return {path: path.read_bytes() for path in paths if path.is_file() and path.suffix != ".log"}


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """Return the folder of a project in which all stages have run."""
    folder = tmp_path_factory.mktemp("trained")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    definition = (ROOT / "dvc.yaml").read_text()
    for folder_of_code in ("stages/models", "stages/data/sources"):
        entry = f"      - {folder_of_code}\n"
        definition = definition.replace(entry, f"{entry}      - mine.py\n      - data.npz\n")
    (folder / "dvc.yaml").write_text(definition)
    np.savez(folder / "data.npz", inputs=np.random.default_rng(1).random((20, 4)), targets=np.arange(20) % 3)
    project = InProcessProject(folder)
    project.write()
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        for stage in ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model"):
            run_stage(stage)
    finally:
        os.chdir(before)
        sys.path[:] = path
    return folder


@pytest.fixture
def project(trained_folder, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(trained_folder, folder, ignore=shutil.ignore_patterns(*PACKAGES))
    for package in PACKAGES:  # a test only reads them
        shutil.copytree(trained_folder / package, folder / package, copy_function=os.link)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield InProcessProject(folder)
    sys.modules.pop("mine", None)


def run_stage_command(stage, monkeypatch, capfd):
    """Run the command ``learner stage``; return its exit code and its standard error."""
    return run_command(["stage", stage], monkeypatch, capfd)


def run_command(arguments, monkeypatch, capfd):
    """Run ``learner`` with *arguments* in this process; return its exit code and its standard error."""
    monkeypatch.setattr(sys, "argv", ["learner", *arguments])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    return exited.value.code, capfd.readouterr().err


MODEL = "{kind: 'mine:Net'}"
MODEL_MISTAKES = {
    "name error in the module": (
        "x = 1\ny = undefined\n",
        ["NameError: name 'undefined'", "mine.py, line {1}"],
    ),
    "syntax error": ("def f(:\n", ["SyntaxError: invalid syntax", "mine.py, line {0}: def f(:"]),
    "missing indentation": ("def f():\nx = 1\n", ["IndentationError", "mine.py, line {1}"]),
    "missing dependency": (
        "import no_such_lab\n",
        ["No module named 'no_such_lab'", "line {0}", "Install 'no_such_lab'"],
    ),
    "missing name of a dependency": ("from math import sinus\n", ["cannot import name 'sinus'", "line {0}"]),
    "exit during the import": ("sys.exit()\n", ["sys.exit()", "mine.py, line {0}"]),
    "exception in __init__": (
        "class Net(Mlp):\n    def __init__(self, **_):\n        raise ValueError('no width')\n",
        ["ValueError: no width", "mine.py, line {2}, in __init__"],
    ),
    "exit in __init__": (
        "class Net(Mlp):\n    def __init__(self, **_):\n        sys.exit(0)\n",
        ["sys.exit(0)", "mine.py, line {2}, in __init__"],
    ),
    "model without parameters": (
        "class Net(ClassificationStep, nn.Module):\n    def forward(self, inputs):\n        return inputs\n",
        ["Net (mine.py, line {0}) has no parameters", "nn.ModuleList"],
    ),
    "model with a lazy module": (
        (
            "class Net(ClassificationStep, nn.Sequential):\n    def __init__(self):\n"
            "        super().__init__(nn.Flatten(), nn.LazyLinear(3))\n"
        ),
        ["Net (mine.py, line {0}): the parameter 1.weight of a LazyLinear is not initialized"],
    ),
    "model with complex parameters": (
        (
            "class Net(ClassificationStep, nn.Linear):\n    def __init__(self):\n"
            "        super().__init__(4, 3, dtype=torch.complex64)\n"
        ),
        ["weight of Net (mine.py, line {0})", "complex64 cannot be recorded", "view_as_real"],
    ),
    "missing class": ("class Nett(Mlp):\n    pass\n", ["has no 'Net'", "Did you mean 'Nett'?"]),
    "model that is not callable": (
        "Net = 3\n",
        ["model 'mine:Net' must name a class or a function; found int 3"],
    ),
    "exception in training_state": (
        (
            "class Net(Mlp):\n    def training_state(self):\n        return {}['step']\n\n"
            "    def load_training_state(self, state):\n        pass\n"
        ),
        ["KeyError: 'step'", "mine.py, line {2}, in training_state"],
    ),
}


def fill_in_lines(messages):
    """Return *messages* with ``{n}`` replaced by the number of line *n* of a case, counted from 0."""
    return [each.format(*range(FIRST_LINE, FIRST_LINE + 40)) for each in messages]


@pytest.mark.parametrize(("code", "messages"), MODEL_MISTAKES.values(), ids=MODEL_MISTAKES)
def test_mistake_in_a_model_is_reported_before_training(code, messages, project, monkeypatch, capfd):
    project.write(code, model=MODEL)
    before = project.files()

    exit_code, printed = run_stage_command("build-learner", monkeypatch, capfd)

    assert exit_code == 1, printed
    assert all(each in printed for each in fill_in_lines(messages)), printed
    assert len(printed.splitlines()) < 8, printed
    assert project.files() == before


def build_step(name, *body):
    """Return the code of a model whose method *name* has the lines *body*."""
    lines = "".join(f"        {line}\n" for line in body)
    return f"class Net(Mlp):\n    def {name}(self, batch):\n{lines}"


COMPUTE_LOSS = ["inputs, targets = batch", "loss = self.loss(self(inputs), targets)"]
STEP_MISTAKES = {
    "name error": (
        build_step("train_step", "return undefined"),
        ["NameError", "mine.py, line {2}, in train_step"],
    ),
    "name error in validation": (
        build_step("valid_step", "return undefined"),
        ["NameError", "mine.py, line {2}, in valid_step: return undefined"],
    ),
    "shapes that do not match": (
        "class Net(Mlp):\n    def forward(self, inputs):\n        return inputs @ torch.zeros(5, 3)\n",
        ["RuntimeError: mat1 and mat2", "mine.py, line {2}, in forward"],
    ),
    "exit with code 0": (
        build_step("train_step", "sys.exit(0)"),
        ["sys.exit(0)", "mine.py, line {2}, in train_step"],
    ),
    "exit without a code": (
        build_step("valid_step", "sys.exit()"),
        ["sys.exit()", "line {2}, in valid_step"],
    ),
    "StopIteration in validation": (
        build_step("valid_step", "return next(iter(()))"),
        ["StopIteration", "mine.py, line {2}, in valid_step"],
    ),
    "GeneratorExit": (build_step("train_step", "raise GeneratorExit"), ["GeneratorExit", "line {2}"]),
    "exception that is not an Exception": (
        build_step("train_step", "raise Stop") + "\n\nclass Stop(BaseException):\n    pass\n",
        ["mine.Stop", "line {2}, in train_step"],
    ),
    "exception without a message": (
        build_step("train_step", "raise ValueError"),
        ["ValueError\n", "line {2}"],
    ),
    "exception whose message fails": (
        "class BadError(Exception):\n    def __str__(self):\n        return 1 / 0\n\n\n"
        + build_step("train_step", "raise BadError"),
        ["BadError: <str() of it failed with ZeroDivisionError>", "line {7}, in train_step"],
    ),
    "exception with a long message": (
        build_step("train_step", "raise ValueError('line\\n' * 10_000)"),
        ["ValueError: line", "… 9,980 more lines", "line {2}, in train_step"],
    ),
    "deep recursion": (
        build_step("train_step", "return self.train_step(batch)"),
        ["RecursionError", "more frames", "line {2}, in train_step"],
    ),
    "chained exceptions": (
        build_step(
            "train_step",
            "try:",
            "    {}['a']",
            "except KeyError as error:",
            "    raise ValueError('b') from error",
        ),
        ["ValueError: b", "line {5}", "caused by KeyError: 'a'", "line {3}"],
    ),
    "missing file": (
        build_step("train_step", "open('no_such_file')"),
        ["FileNotFoundError", "no_such_file", "line {2}, in train_step"],
    ),
    "warning as error": (
        build_step("train_step", "import warnings", "warnings.simplefilter('error')", "warnings.warn('odd')"),
        ["UserWarning: odd", "line {4}, in train_step"],
    ),
    "step that returns a dict": (
        build_step("train_step", "return {'loss': 1}"),
        ["Net.train_step (mine.py, line {1}) returned a dict"],
    ),
    "step that returns a loss only": (
        build_step("train_step", *COMPUTE_LOSS, "return loss"),
        ["Net.train_step (mine.py, line {1}) returned a tensor of shape ()", "TrainOutput"],
    ),
    "step that returns None": (
        build_step("train_step", "pass"),
        ["Net.train_step (mine.py, line {1}) returned None"],
    ),
    "validation step that returns a loss only": (
        build_step("valid_step", *COMPUTE_LOSS, "return loss"),
        ["Net.valid_step (mine.py, line {1}) returned a tensor of shape ()"],
    ),
    "loss of each sample": (
        "class Net(Mlp):\n    def loss(self, logits, targets):\n        return logits.sum(1)\n",
        ["Net.loss (mine.py, line {1})", "found shape (4,)", "loss.mean()"],
    ),
    "loss that is not a tensor": (
        "class Net(Mlp):\n    def loss(self, logits, targets):\n        return logits.sum().item()\n",
        ["Net.loss (mine.py, line {1})", "found the type float"],
    ),
    "detached loss": (
        "class Net(Mlp):\n    def loss(self, logits, targets):\n        return logits.sum().detach()\n",
        ["Net.loss (mine.py, line {1})", "no gradient"],
    ),
    "too few gradients": (
        build_step(
            "train_step",
            *COMPUTE_LOSS,
            "item = ClassificationOutput(loss, self(inputs), targets)",
            "return TrainOutput(self, backward(self, loss)[1:], item)",
        ),
        ["Net.train_step (mine.py, line {1}) returned 3 gradients for 4 parameters"],
    ),
    "gradients in another order": (
        build_step(
            "train_step",
            *COMPUTE_LOSS,
            "item = ClassificationOutput(loss, self(inputs), targets)",
            "return TrainOutput(self, backward(self, loss)[::-1], item)",
        ),
        ["Net.train_step (mine.py, line {1}) returned a gradient of shape (3,)"],
    ),
    "generator of gradients": (
        build_step(
            "train_step",
            *COMPUTE_LOSS,
            "item = ClassificationOutput(loss, self(inputs), targets)",
            "return TrainOutput(self, (p.grad for p in self.parameters()), item)",
        ),
        ["Net.train_step (mine.py, line {1}) returned a generator as gradients"],
    ),
    "output without a size": (
        build_step("train_step", *COMPUTE_LOSS, "return TrainOutput(self, backward(self, loss), Item(loss))")
        + "\n\nclass Item:\n    def __init__(self, loss):\n        self.loss = loss\n",
        ["Net.train_step (mine.py, line {1}) returned an Item without a size"],
    ),
    "size that is a method": (
        build_step("train_step", *COMPUTE_LOSS, "return TrainOutput(self, backward(self, loss), Item(loss))")
        + "\n\nclass Item:\n    def __init__(self, loss):\n        self.loss = loss\n\n"
        "    def size(self):\n        return 4\n",
        ["Net.train_step (mine.py, line {1})", "size is a method: make it a @property"],
    ),
    "sparse gradients": (
        (
            "class Net(ClassificationStep, nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.table = nn.Embedding(9, 3, sparse=True)\n\n"
            "    def forward(self, inputs):\n        return self.table(inputs.abs().long()).sum(1)\n"
        ),
        ["the gradient of table.weight is sparse, which Adam", "sparse=False"],
    ),
}


@pytest.mark.parametrize(("code", "messages"), STEP_MISTAKES.values(), ids=STEP_MISTAKES)
def test_mistake_in_a_step_names_the_step_and_loses_no_progress(code, messages, project, monkeypatch, capfd):
    project.write(code, model=MODEL)
    run_stage("build-learner")
    before = project.files()
    capfd.readouterr()

    exit_code, printed = run_stage_command("fit", monkeypatch, capfd)

    assert exit_code == 1
    assert all(each in printed for each in fill_in_lines(messages)), printed
    assert len(printed.splitlines()) < 35, printed
    assert project.files() == before


NET = "class Net(ClassificationStep, nn.Sequential):\n    def __init__(self):\n        super().__init__({})\n"
OWN_STEP = (
    "\n    def train_step(self, batch):\n        output = self.forward_classification(batch)\n"
    "        return TrainOutput(self, backward(self, output.loss), output)\n"
)
CAST = "\n\ndef cast(items):\n    return items.inputs.to(torch.{}), items.targets.to(torch.{})\n"
BATCH_MISTAKES = {
    "wrong input size": (
        "nn.Flatten(), nn.Linear(3, 10)",
        ("float32", "int64"),
        "the layer 1 has in_features=3, and its input (4, 4) has 4",
    ),
    "too few outputs": (
        "nn.Linear(4, 2)",
        ("float32", "int64"),
        "the largest label is 2, and the model has 2 outputs",
    ),
    "dtype of the inputs": (
        "nn.Linear(4, 10)",
        ("float64", "int64"),
        "the input of the layer 0 is float64, and it takes float32",
    ),
    "dtype of the labels": (
        "nn.Linear(4, 10)",
        ("float32", "int32"),
        "the labels are int32, and the loss takes int64",
    ),
}


@pytest.mark.parametrize("own_step", ["", OWN_STEP], ids=["mixin", "own step"])
@pytest.mark.parametrize(("layers", "dtypes", "message"), BATCH_MISTAKES.values(), ids=BATCH_MISTAKES)
def test_batch_that_does_not_fit_the_model_is_explained(
    layers, dtypes, message, own_step, project, monkeypatch, capfd
):
    project.write(
        NET.format(layers) + own_step + CAST.format(*dtypes), model=MODEL, batcher="{kind: 'mine:cast'}"
    )
    run_stage("build-learner")
    capfd.readouterr()

    exit_code, printed = run_stage_command("fit", monkeypatch, capfd)

    assert exit_code == 1
    assert message in printed
    assert f"batch: inputs (4, 4) {dtypes[0]}, targets (4,) {dtypes[1]} from " in printed
    assert ("in train_step" in printed) is bool(own_step)
    assert "site-packages" not in printed
    assert len(printed.splitlines()) <= 8


def test_full_traceback_has_the_exception_that_a_message_replaces(project, monkeypatch, capfd):
    project.write(NET.format("nn.Linear(3, 10)"), model=MODEL)
    run_stage("build-learner")
    monkeypatch.setenv("LEARNER_TRACEBACK", "1")

    _, printed = run_stage_command("fit", monkeypatch, capfd)

    assert "torch/nn/modules/linear.py" in printed


COMMANDS = {"run": lambda project: project.call("run"), "repro": lambda project: project.dvc("repro")}


@pytest.mark.long  # in the stage: test_batch_that_does_not_fit_the_model_is_explained
@pytest.mark.parametrize("run", COMMANDS.values(), ids=COMMANDS)
def test_commands_print_no_internals_for_a_batch_that_does_not_fit(run, finished):
    (finished.folder / "mine.py").write_text(MODULE_HEAD + NET.format("nn.Flatten(), nn.Linear(64, 2)"))
    finished.use_model("mine:Net")
    finished.add_deps()

    failed = run(finished)

    assert failed.code != 0
    assert "the largest label is 9, and the model has 2 outputs" in failed.text
    assert "Traceback" not in failed.text
    assert len(failed.text.splitlines()) <= 16


PART_MISTAKES = {
    "error in a source": (
        "load-data",
        "def load():\n    return 1 / 0\n",
        {"source": "{kind: 'mine:load'}"},
        "line {1}, in load",
    ),
    "exit in a source": (
        "load-data",
        "def load():\n    sys.exit(0)\n",
        {"source": "{kind: 'mine:load'}"},
        "line {1}, in load: sys.exit(0)",
    ),
    "error in a metric": (
        "fit",
        "class Mine(LossMetric):\n    name = 'Mine'\n\n    def measure(self, item):\n        return 1 / 0\n",
        {"metrics": "[loss, 'mine:Mine']"},
        "line {4}, in measure",
    ),
    "error in a batcher": (
        "fit",
        "class Mine:\n    def batch(self, items):\n        return 1 / 0\n",
        {"batcher": "{kind: 'mine:Mine'}"},
        "line {2}, in batch",
    ),
    "error of a batcher in a worker": (
        "fit",
        "class Mine:\n    def batch(self, items):\n        return 1 / 0\n",
        {"batcher": "{kind: 'mine:Mine'}", "workers": "1"},
        "line {2}, in batch",
    ),
    "exit of a batcher in a worker": (
        "fit",
        "def mine(items):\n    sys.exit(0)\n",
        {"batcher": "{kind: 'mine:mine'}", "workers": "1"},
        "line {1}, in mine",
    ),
    "batcher that returns a dict": (
        "fit",
        "def mine(items):\n    return {'x': items.inputs, 'y': items.targets}\n",
        {"batcher": "{kind: 'mine:mine'}"},
        "forward_classification takes a batch of (inputs, targets); found a dict with the keys 'x', 'y'",
    ),
    "interrupt in a batcher": (
        "fit",
        "def mine(items):\n    raise KeyboardInterrupt\n",
        {"batcher": "{kind: 'mine:mine'}"},
        "line {1}, in mine",
    ),
}


@pytest.mark.parametrize(("stage", "code", "params", "message"), PART_MISTAKES.values(), ids=PART_MISTAKES)
def test_mistake_in_a_part_is_reported_with_its_line(
    stage, code, params, message, project, monkeypatch, capfd, request
):
    project.write(code, **params)
    before = project.files()

    exit_code, printed = run_stage_command(stage, monkeypatch, capfd)

    assert exit_code == (130 if "interrupt" in request.node.callspec.id else 1)
    assert all(each in printed for each in fill_in_lines([message])), printed
    assert "Traceback" not in printed
    assert project.files() == before


def test_params_can_name_a_function_as_batcher(project):
    project.write(
        "def mine(items, scale):\n    return items.inputs.float() * scale, items.targets\n",
        batcher="{kind: 'mine:mine', scale: 0.5}",
    )
    before = project.files()

    run_stage("fit")

    assert project.files() != before


@pytest.mark.parametrize("body", ["return 1 / 0", "sys.exit(0)"])
def test_evaluate_reports_a_mistake_with_its_line(body, project, monkeypatch, capfd):
    code = f"class Mine(LossMetric):\n    name = 'Mine'\n\n    def measure(self, item):\n        {body}\n"
    project.write(code, metrics="[loss, 'mine:Mine']")

    exit_code, printed = run_command(["evaluate"], monkeypatch, capfd)

    assert exit_code == 1
    assert f"mine.py, line {FIRST_LINE + 4}, in measure: {body}" in printed
    assert "Traceback" not in printed


def test_full_traceback_is_printed_if_the_variable_is_set(project, monkeypatch, capfd):
    project.write("def load():\n    return 1 / 0\n", source="{kind: 'mine:load'}")
    monkeypatch.setenv("LEARNER_TRACEBACK", "1")

    _, printed = run_stage_command("load-data", monkeypatch, capfd)

    assert "Traceback (most recent call last)" in printed
    assert "pipeline/engine/stage_run.py" in printed


class KillingRenderer(NoRenderer):
    """A renderer whose user presses the key that kills the run."""

    def step(self, progress):
        raise KilledError


def test_kill_key_stops_a_stage_with_code_130(project):
    before = project.files()
    project.write(metrics="[loss, accuracy]")

    with pytest.raises(RunInterruptedError, match="killed by the key k") as raised:
        run_stage("fit", KillingRenderer())

    assert raised.value.exit_code == 130
    assert project.files() == before


def test_error_keeps_its_cause(project):
    project.write("def load():\n    return 1 / 0\n", source="{kind: 'mine:load'}")

    with pytest.raises(UserCodeError) as raised:
        run_stage("load-data")

    assert isinstance(raised.value.__cause__, ZeroDivisionError)


EXITING_MODULE = MODULE_HEAD + build_step("train_step", "sys.exit(0)")
FAILING_MODULE = MODULE_HEAD + build_step("valid_step", "return undefined")


def read_fit_entry(project):
    """Return the entry of fit in dvc.lock."""
    return YAML(typ="safe").load((project.folder / "dvc.lock").read_text())["stages"]["fit"]


@pytest.mark.parametrize("run", cases({name: (run,) for name, run in COMMANDS.items()}, ["run"]))
def test_sys_exit_in_a_step_fails_the_command_and_records_nothing(run, finished):
    (finished.folder / "mine.py").write_text(EXITING_MODULE)
    finished.use_model("mine:Net")
    finished.add_deps()
    before = finished.files("artifacts/model.mpk.gz", "artifacts/metrics.json", "artifacts/checkpoint")
    entry = read_fit_entry(finished)

    failed = run(finished)

    assert failed.code != 0
    assert f"mine.py, line {FIRST_LINE + 2}, in train_step: sys.exit(0)" in failed.text
    assert "Traceback" not in failed.text
    assert before.items() <= finished.files("artifacts").items()
    assert read_fit_entry(finished) == entry


@pytest.mark.long
def test_recorded_flow_reports_a_mistake_once(finished, server):
    (finished.folder / "mine.py").write_text(FAILING_MODULE)
    finished.use_model("mine:Net")
    finished.add_deps()

    failed = finished.call("run", PREFECT_API_URL=server)

    assert failed.code == 1
    assert "error: fit: your code raised NameError: name 'undefined' is not defined\n  mine.py" in failed.err
    assert "Traceback" not in failed.text
    assert "retry" not in failed.text.lower()
