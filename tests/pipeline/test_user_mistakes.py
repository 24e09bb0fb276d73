"""Mistakes in the user's code: one message with the file and the line, a failure, and untouched results."""

import importlib
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from pipeline import cli
from pipeline.engine.stage_run import run_stage
from stages.contracts.errors import KilledError, RunInterruptedError, UserCodeError
from stages.renderers import NoRenderer

ROOT = Path(__file__).parents[2]
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
HEAD = """import sys
import torch
from torch import nn
from stages.contracts.outputs import ClassificationOutput, TrainOutput
from stages.metrics import LossMetric
from stages.models import ClassificationStep, Mlp, backward
"""
FIRST = HEAD.count("\n") + 1
"""The line of the user's module on which the code of a case begins."""


class Results:
    """A project in the current folder whose stages run in this process."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, code="", **params):
        (self.folder / "mine.py").write_text(HEAD + code)
        (self.folder / "params.yaml").write_text(PARAMS.format(**DEFAULTS | params))
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()

    def files(self):
        artifacts = self.folder / "artifacts"
        paths = [*artifacts.rglob("*"), *(self.folder / "data").rglob("*")]
        return {path: path.read_bytes() for path in paths if path.is_file() and path.suffix != ".log"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project in which all stages have run."""
    folder = tmp_path_factory.mktemp("trained")
    for package in ("pipeline", "stages"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "dvc.yaml", folder)
    np.savez(folder / "data.npz", inputs=np.random.default_rng(1).random((20, 4)), targets=np.arange(20) % 3)
    project = Results(folder)
    project.write()
    before = Path.cwd()
    os.chdir(folder)
    try:
        for stage in ("create-artifact-dir", "load-data", "build-learner", "fit", "save-model"):
            run_stage(stage)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def project(trained, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(trained, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield Results(folder)
    sys.modules.pop("mine", None)


def run(stage, monkeypatch, capfd):
    """Run the command ``stage``; its exit code and what it printed to standard error."""
    return run_command(["stage", stage], monkeypatch, capfd)


def run_command(arguments, monkeypatch, capfd):
    monkeypatch.setattr(sys, "argv", ["learner", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capfd.readouterr().err


MODEL = "{kind: 'mine:Net'}"
OF_BUILD = {
    "name error in the module": (
        "x = 1\ny = undefined\n",
        ["NameError: name 'undefined'", "mine.py, line {1}"],
    ),
    "syntax error": ("def f(:\n", ["SyntaxError: invalid syntax", "mine.py, line {0}: def f(:"]),
    "indentation": ("def f():\nx = 1\n", ["IndentationError", "mine.py, line {1}"]),
    "missing dependency": (
        "import no_such_lab\n",
        ["No module named 'no_such_lab'", "line {0}", "Install 'no_such_lab'"],
    ),
    "missing name of a dependency": ("from math import sinus\n", ["cannot import name 'sinus'", "line {0}"]),
    "exit on import": ("sys.exit()\n", ["sys.exit()", "mine.py, line {0}"]),
    "exception in __init__": (
        "class Net(Mlp):\n    def __init__(self, **_):\n        raise ValueError('no width')\n",
        ["ValueError: no width", "mine.py, line {2}, in __init__"],
    ),
    "exit in __init__": (
        "class Net(Mlp):\n    def __init__(self, **_):\n        sys.exit(0)\n",
        ["sys.exit(0)", "mine.py, line {2}, in __init__"],
    ),
    "no parameters": (
        "class Net(ClassificationStep, nn.Module):\n    def forward(self, inputs):\n        return inputs\n",
        ["Net (mine.py, line {0}) has no parameters", "nn.ModuleList"],
    ),
    "lazy module": (
        (
            "class Net(ClassificationStep, nn.Sequential):\n    def __init__(self):\n"
            "        super().__init__(nn.Flatten(), nn.LazyLinear(3))\n"
        ),
        ["Net (mine.py, line {0}): the parameter 1.weight of a LazyLinear is not initialized"],
    ),
    "complex parameters": (
        (
            "class Net(ClassificationStep, nn.Linear):\n    def __init__(self):\n"
            "        super().__init__(4, 3, dtype=torch.complex64)\n"
        ),
        ["weight of Net (mine.py, line {0})", "complex64 cannot be recorded", "view_as_real"],
    ),
    "missing class": ("class Nett(Mlp):\n    pass\n", ["has no 'Net'", "Did you mean 'Nett'?"]),
    "not callable": ("Net = 3\n", ["model 'mine:Net' must name a class or a function; found int 3"]),
    "exception in training_state": (
        (
            "class Net(Mlp):\n    def training_state(self):\n        return {}['step']\n\n"
            "    def load_training_state(self, state):\n        pass\n"
        ),
        ["KeyError: 'step'", "mine.py, line {2}, in training_state"],
    ),
}


def expected(words):
    return [word.format(*range(FIRST, FIRST + 40)) for word in words]


@pytest.mark.parametrize(("code", "words"), OF_BUILD.values(), ids=OF_BUILD)
def test_mistake_in_a_model_is_explained_before_training(code, words, project, monkeypatch, capfd):
    project.write(code, model=MODEL)
    before = project.files()

    exit_code, printed = run("build-learner", monkeypatch, capfd)

    assert exit_code == 1, printed
    assert all(word in printed for word in expected(words)), printed
    assert len(printed.splitlines()) < 8, printed
    assert project.files() == before


def step(name, *body):
    lines = "".join(f"        {line}\n" for line in body)
    return f"class Net(Mlp):\n    def {name}(self, batch):\n{lines}"


BODY = ["inputs, targets = batch", "loss = self.loss(self(inputs), targets)"]
OF_STEPS = {
    "name error": (step("train_step", "return undefined"), ["NameError", "mine.py, line {2}, in train_step"]),
    "name error in validation": (
        step("valid_step", "return undefined"),
        ["NameError", "mine.py, line {2}, in valid_step: return undefined"],
    ),
    "shapes": (
        "class Net(Mlp):\n    def forward(self, inputs):\n        return inputs @ torch.zeros(5, 3)\n",
        ["RuntimeError: mat1 and mat2", "mine.py, line {2}, in forward"],
    ),
    "exit": (step("train_step", "sys.exit(0)"), ["sys.exit(0)", "mine.py, line {2}, in train_step"]),
    "exit without a code": (step("valid_step", "sys.exit()"), ["sys.exit()", "line {2}, in valid_step"]),
    "generator exit": (step("train_step", "raise GeneratorExit"), ["GeneratorExit", "line {2}"]),
    "own base exception": (
        step("train_step", "raise Stop") + "\n\nclass Stop(BaseException):\n    pass\n",
        ["mine.Stop", "line {2}, in train_step"],
    ),
    "empty message": (step("train_step", "raise ValueError"), ["ValueError\n", "line {2}"]),
    "failing message": (
        "class BadError(Exception):\n    def __str__(self):\n        return 1 / 0\n\n\n"
        + step("train_step", "raise BadError"),
        ["BadError: <str() of it failed with ZeroDivisionError>", "line {7}, in train_step"],
    ),
    "long message": (
        step("train_step", "raise ValueError('line\\n' * 10_000)"),
        ["ValueError: line", "… 9,980 more lines", "line {2}, in train_step"],
    ),
    "deep recursion": (
        step("train_step", "return self.train_step(batch)"),
        ["RecursionError", "more frames", "line {2}, in train_step"],
    ),
    "chained": (
        step(
            "train_step",
            "try:",
            "    {}['a']",
            "except KeyError as error:",
            "    raise ValueError('b') from error",
        ),
        ["ValueError: b", "line {5}", "caused by KeyError: 'a'", "line {3}"],
    ),
    "missing file": (
        step("train_step", "open('no_such_file')"),
        ["FileNotFoundError", "no_such_file", "line {2}, in train_step"],
    ),
    "warning as error": (
        step("train_step", "import warnings", "warnings.simplefilter('error')", "warnings.warn('odd')"),
        ["UserWarning: odd", "line {4}, in train_step"],
    ),
    "dict": (
        step("train_step", "return {'loss': 1}"),
        ["Net.train_step (mine.py, line {1}) returned a dict"],
    ),
    "bare loss": (
        step("train_step", *BODY, "return loss"),
        ["Net.train_step (mine.py, line {1}) returned a tensor of shape ()", "TrainOutput"],
    ),
    "nothing": (step("train_step", "pass"), ["Net.train_step (mine.py, line {1}) returned None"]),
    "bare loss in validation": (
        step("valid_step", *BODY, "return loss"),
        ["Net.valid_step (mine.py, line {1}) returned a tensor of shape ()"],
    ),
    "loss per sample": (
        "class Net(Mlp):\n    def loss(self, logits, targets):\n        return logits.sum(1)\n",
        ["Net.loss (mine.py, line {1})", "found shape (4,)", "loss.mean()"],
    ),
    "loss that is a number": (
        "class Net(Mlp):\n    def loss(self, logits, targets):\n        return logits.sum().item()\n",
        ["Net.loss (mine.py, line {1})", "found the type float"],
    ),
    "detached loss": (
        "class Net(Mlp):\n    def loss(self, logits, targets):\n        return logits.sum().detach()\n",
        ["Net.loss (mine.py, line {1})", "no gradient"],
    ),
    "too few gradients": (
        step(
            "train_step",
            *BODY,
            "item = ClassificationOutput(loss, self(inputs), targets)",
            "return TrainOutput(self, backward(self, loss)[1:], item)",
        ),
        ["Net.train_step (mine.py, line {1}) returned 3 gradients for 4 parameters"],
    ),
    "gradients in another order": (
        step(
            "train_step",
            *BODY,
            "item = ClassificationOutput(loss, self(inputs), targets)",
            "return TrainOutput(self, backward(self, loss)[::-1], item)",
        ),
        ["Net.train_step (mine.py, line {1}) returned a gradient of shape (3,)"],
    ),
    "generator of gradients": (
        step(
            "train_step",
            *BODY,
            "item = ClassificationOutput(loss, self(inputs), targets)",
            "return TrainOutput(self, (p.grad for p in self.parameters()), item)",
        ),
        ["Net.train_step (mine.py, line {1}) returned a generator as gradients"],
    ),
    "output without a size": (
        step("train_step", *BODY, "return TrainOutput(self, backward(self, loss), Item(loss))")
        + "\n\nclass Item:\n    def __init__(self, loss):\n        self.loss = loss\n",
        ["Net.train_step (mine.py, line {1}) returned an Item without a size"],
    ),
    "size that is a method": (
        step("train_step", *BODY, "return TrainOutput(self, backward(self, loss), Item(loss))")
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


@pytest.mark.parametrize(("code", "words"), OF_STEPS.values(), ids=OF_STEPS)
def test_mistake_in_a_step_names_the_step_and_loses_no_progress(code, words, project, monkeypatch, capfd):
    project.write(code, model=MODEL)
    run_stage("build-learner")
    before = project.files()
    capfd.readouterr()

    exit_code, printed = run("fit", monkeypatch, capfd)

    assert exit_code == 1
    assert all(word in printed for word in expected(words)), printed
    assert len(printed.splitlines()) < 35, printed
    assert project.files() == before


OF_PARTS = {
    "source": (
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
    "metric": (
        "fit",
        "class Mine(LossMetric):\n    name = 'Mine'\n\n    def measure(self, item):\n        return 1 / 0\n",
        {"metrics": "[loss, 'mine:Mine']"},
        "line {4}, in measure",
    ),
    "batcher": (
        "fit",
        "class Mine:\n    def batch(self, items):\n        return 1 / 0\n",
        {"batcher": "{kind: 'mine:Mine'}"},
        "line {2}, in batch",
    ),
    "batcher in a worker": (
        "fit",
        "class Mine:\n    def batch(self, items):\n        return 1 / 0\n",
        {"batcher": "{kind: 'mine:Mine'}", "workers": "1"},
        "line {2}, in batch",
    ),
    "exit in a worker": (
        "fit",
        "def mine(items):\n    sys.exit(0)\n",
        {"batcher": "{kind: 'mine:mine'}", "workers": "1"},
        "line {1}, in mine",
    ),
    "dict batch": (
        "fit",
        "def mine(items):\n    return {'x': items.inputs, 'y': items.targets}\n",
        {"batcher": "{kind: 'mine:mine'}"},
        "forward_classification takes a batch of (inputs, targets); found a dict with the keys 'x', 'y'",
    ),
    "interrupt": (
        "fit",
        "def mine(items):\n    raise KeyboardInterrupt\n",
        {"batcher": "{kind: 'mine:mine'}"},
        "line {1}, in mine",
    ),
}


@pytest.mark.parametrize(("stage", "code", "params", "words"), OF_PARTS.values(), ids=OF_PARTS)
def test_mistake_in_a_part_names_its_line(stage, code, params, words, project, monkeypatch, capfd, request):
    project.write(code, **params)
    before = project.files()

    exit_code, printed = run(stage, monkeypatch, capfd)

    assert exit_code == (130 if "interrupt" in request.node.callspec.id else 1)
    assert all(word in printed for word in expected([words])), printed
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
def test_evaluate_explains_a_mistake(body, project, monkeypatch, capfd):
    code = f"class Mine(LossMetric):\n    name = 'Mine'\n\n    def measure(self, item):\n        {body}\n"
    project.write(code, metrics="[loss, 'mine:Mine']")

    exit_code, printed = run_command(["evaluate"], monkeypatch, capfd)

    assert exit_code == 1
    assert f"mine.py, line {FIRST + 4}, in measure: {body}" in printed
    assert "Traceback" not in printed


def test_full_traceback_is_printed_on_request(project, monkeypatch, capfd):
    project.write("def load():\n    return 1 / 0\n", source="{kind: 'mine:load'}")
    monkeypatch.setenv("LEARNER_TRACEBACK", "1")

    _, printed = run("load-data", monkeypatch, capfd)

    assert "Traceback (most recent call last)" in printed
    assert "pipeline/engine/stage_run.py" in printed


class Killing(NoRenderer):
    def step(self, progress):
        raise KilledError


def test_kill_key_ends_a_stage_with_code_130(project):
    before = project.files()
    project.write(metrics="[loss, accuracy]")

    with pytest.raises(RunInterruptedError, match="killed by the key k") as raised:
        run_stage("fit", Killing())

    assert raised.value.exit_code == 130
    assert project.files() == before


def test_error_keeps_its_cause(project):
    project.write("def load():\n    return 1 / 0\n", source="{kind: 'mine:load'}")

    with pytest.raises(UserCodeError) as raised:
        run_stage("load-data")

    assert isinstance(raised.value.__cause__, ZeroDivisionError)


EXITING = HEAD + step("train_step", "sys.exit(0)")
UNDEFINED = HEAD + step("valid_step", "return undefined")
COMMANDS = {"dvc repro": ("dvc", "repro"), "learner run": (sys.executable, "-m", "pipeline", "run")}


def recorded_fit(project):
    return YAML(typ="safe").load((project.folder / "dvc.lock").read_text())["stages"]["fit"]


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_sys_exit_in_a_step_fails_the_command_and_records_nothing(command, finished):
    (finished.folder / "mine.py").write_text(EXITING)
    finished.edit("params.yaml", "kind: cnn", 'kind: "mine:Net"')
    finished.edit("params.yaml", "    dropout: 0.5\n", "")
    before = finished.files("artifacts/model.mpk.gz", "artifacts/metrics.json", "artifacts/checkpoint")
    recorded = recorded_fit(finished)

    failed = finished.run(*command)

    assert failed.code != 0
    assert f"mine.py, line {FIRST + 2}, in train_step: sys.exit(0)" in failed.text
    assert "Traceback" not in failed.text
    assert before.items() <= finished.files("artifacts").items()
    assert recorded_fit(finished) == recorded


def test_recorded_flow_explains_the_mistake_once(finished, server):
    (finished.folder / "mine.py").write_text(UNDEFINED)
    finished.edit("params.yaml", "kind: cnn", 'kind: "mine:Net"')
    finished.edit("params.yaml", "    dropout: 0.5\n", "")

    failed = finished.learner("run", PREFECT_API_URL=server)

    assert failed.code == 1
    assert "error: fit: your code raised NameError: name 'undefined' is not defined\n  mine.py" in failed.err
    assert "Traceback" not in failed.text
    assert "retry" not in failed.text.lower()
