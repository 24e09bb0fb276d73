"""The programs on the pages and in docstrings run, and the commands of DVC and torchrun are accepted.

``python tests/lint`` checks the rest: other commands, options, links, and the names that programs import.
"""

import doctest
import re
import shlex
import subprocess
import sys
from importlib import import_module

import pytest
from dvc.cli.parser import get_main_parser
from long_tests import long
from pages import ROOT, page, pages
from repository import list_files
from ruamel.yaml import YAML
from torch.distributed.run import get_args_parser

from pipeline.project.params import Params
from stages.records import read_item

MNIST = ROOT.parent / "shared" / "mnist"
README = page("README.md")
PROGRAMS = [
    pytest.param(text, id=f"{each.name}-{number}")
    for each in pages()
    for number, text in enumerate(each.blocks("python"), start=1)
    if each != README
    and not re.match(
        r"# (guide|training|ported|custom|points|predict|run_onnx|register)\.py\n", text
    )  # each has a test
]


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_python_block_runs_as_a_script(program, project, tmp_path):
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "params.yaml").write_bytes((project.folder / "params.yaml").read_bytes())  # one reads it
    environment = project.environment | {"PYTHONPATH": str(ROOT)}

    ended = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr


WITH_EXAMPLES = [
    name.removesuffix(".py").replace("/", ".")
    for name in list_files()
    if re.fullmatch(r"stages/.+\.py", name) and ">>> " in (ROOT / name).read_text()
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_the_docstrings_of_a_module_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    tried = doctest.testmod(import_module(name))

    assert tried.attempted
    assert not tried.failed


def commands_of(program):
    """Return the arguments of each command of *program* on the pages."""
    lines = [line for each in pages() for line in each.commands()]
    commands = [each for line in lines for each in re.split(" && | ; ", line)]
    return [shlex.split(each)[1:] for each in commands if each.startswith(f"{program} ")]


def test_commands_of_dvc_and_torchrun_are_accepted():
    """The parsers are those of the real programs; a placeholder in capitals is a valid value."""
    scripts = {get_args_parser().parse_args(each).training_script for each in commands_of("torchrun")}

    assert all(get_main_parser().parse_args(each).func for each in commands_of("dvc"))
    assert scripts == {"pipeline"}


def program_named(name, text):
    return next(block for block in text.blocks("python") if block.startswith(f"# {name}\n"))


@pytest.mark.parametrize(("epochs", "accuracy"), [(3, 88), long(20, 97)])
def test_readme_program_trains_the_digits_to_97_percent(epochs, accuracy, project):
    [script] = [block for block in README.blocks("python") if "LearnerBuilder" in block]
    assert "num_epochs(20)" in script
    (project.folder / "script.py").write_text(script.replace("num_epochs(20)", f"num_epochs({epochs})"))

    text = project.fork("script").ok()

    assert len(script.splitlines()) <= 30
    assert float(re.findall(r"epoch .* valid: Accuracy ([\d.]+)", text)[-1]) >= accuracy
    assert (project.folder / "digits/checkpoint").is_dir()


def test_program_that_loads_the_model_predicts_digits(finished, monkeypatch, capsys):
    monkeypatch.chdir(finished.folder)

    exec(program_named("predict.py", page("stages/inference/README.md")), {})  # noqa: S102  a page of this project

    assert capsys.readouterr().out.endswith(" torch.Size([5, 10])\n")


@pytest.mark.long
def test_burn_guide_reaches_96_percent(project):
    """The guide trains on MNIST if its files are present, for fewer epochs, and on the digits otherwise."""
    script = program_named("guide.py", page("stages/learner/from_burn.md"))
    if MNIST.is_dir():
        (project.folder.parent / "shared").symlink_to(MNIST.parent)
        quick = "TrainingConfig(model=model, num_epochs=1, learning_rate=1e-3, num_workers=0)"
        script = script.replace("TrainingConfig(model=model)", quick)
    (project.folder / "guide.py").write_text(script)

    text = project.ok(sys.executable, "guide.py")

    accuracies = re.findall(r"epoch .* valid: Accuracy ([\d.]+)", text)
    assert float(accuracies[-1]) >= 96
    assert "= Learner Summary =" in text
    config = (project.folder / "guide/config.json").read_text()
    assert config.startswith(
        '{\n  "model": {\n    "num_classes": 10,\n    "hidden_size": 512,\n    "dropout": 0.5\n'
    )
    weight = read_item(project.folder / "guide/model.mpk.gz")["linear1"]["weight"]
    assert weight["param"].shape == (1024, 512), "Burn's record, with Linear weights as [in, out]"


@pytest.mark.parametrize(("epochs", "hidden_size", "accuracy"), [(1, 16, 20), long(20, 512, 96)])
def test_newest_burn_guide_trains_and_writes_the_files_of_burn_022(
    epochs, hidden_size, accuracy, monkeypatch, tmp_path, capsys
):
    guide, training = (
        program_named(name, page("stages/learner/from_burn.md")) for name in ("guide.py", "training.py")
    )
    (tmp_path / "guide.py").write_text(guide)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("guide", None)
    training = training.replace("num_epochs=20", f"num_epochs={epochs}")
    training = training.replace("hidden_size=512", f"hidden_size={hidden_size}")

    exec(training, {"__name__": "__main__"})  # noqa: S102  a page of this project

    printed, folder = capsys.readouterr().out, tmp_path / "training"
    assert float(re.findall(r"epoch .* valid: Accuracy ([\d.]+)", printed)[-1]) >= accuracy
    assert "= Learner Summary =" in printed
    assert read_item(folder / "model.bpk")["linear1"]["weight"]["param"].shape == (1024, hidden_size)
    saved = {path.name for path in (folder / "checkpoint").glob(f"*-{epochs}.bpk")}
    assert saved == {f"{part}-{epochs}.bpk" for part in ("model", "optim", "scheduler")}
    assert (folder / f"train/epoch-{epochs}/Loss.log").read_text().endswith(",final\n")


@pytest.mark.long
def test_program_ported_from_lightning_trains_and_resumes(project):
    (project.folder / "ported.py").write_text(
        program_named("ported.py", page("stages/learner/from_lightning.md"))
    )

    text = project.ok(sys.executable, "ported.py")

    assert float(re.findall(r"epoch .* valid: Accuracy ([\d.]+)", text)[-1]) >= 90
    assert "epoch  1/10" not in project.ok(sys.executable, "ported.py")


@pytest.mark.long
def test_loss_of_the_custom_loop_falls_each_epoch(project):
    (project.folder / "custom.py").write_text(program_named("custom.py", page("stages/learner/from_burn.md")))

    losses = [float(line.split()[1]) for line in project.ok(sys.executable, "custom.py").splitlines()]

    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)


@pytest.mark.long
def test_own_model_and_data_run_and_an_edit_reruns_them(project):
    for block in README.blocks("python"):
        if found := re.match(r"# (my_lab/\w+\.py)\n", block):
            path = project.folder / found[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
    project.edit("params.yaml", "kind: digits\n    path: null", 'kind: "my_lab.sources:rings"')
    project.use_model("my_lab.nets:Wide", "width: 128")

    checked = project.learner("check")
    assert checked.code == 1
    assert all(checked.out.count(f"my_lab/{name}.py") >= 1 for name in ("sources", "nets"))
    source, models = "      - stages/data/sources\n", "      - stages/models\n"
    project.edit("dvc.yaml", source, f"{source}      - my_lab/sources.py\n")
    project.edit("dvc.yaml", models, f"{models}      - my_lab/nets.py\n")
    assert project.learner("check").out == "params.yaml is valid\n"

    assert "epoch 2/2" in project.ok("dvc", "repro")
    project.edit("my_lab/nets.py", "nn.ReLU()", "nn.Tanh()")
    text = project.ok("dvc", "repro")
    assert "Running stage 'build-learner'" in text
    assert "Stage 'load-data' didn't change" in text


@pytest.mark.long  # lint checks the commands and options; comparison/test_compare.py runs those of its page
def test_commands_of_the_readme_run(finished):
    """Run every `dvc` and `learner` command of the page, in its order, after `make repro`."""
    finished.dvc("exp", "run", "-q", "-n", "other", "-S", "fit.num_epochs=3").ok()
    skipped = re.compile(r"make|pip|git|cd|learner (init|serve|sweep)|prefect|torchrun|\. ")

    for command in README.commands():
        if not skipped.match(command):
            run_command(finished, command)


def run_command(project, command):
    """Run *command* of the page with fewer epochs and an experiment that exists."""
    for old, new in (("num_epochs=30", "num_epochs=3"), ("--epoch 20", "--epoch 2"), (" --open", "")):
        command = command.replace(old, new)
    words = ["other" if word in {"big", "longer"} else word for word in shlex.split(command)]
    if "-n" in words:
        words[words.index("-n") + 1] = "named"
    run = {"learner": project.call, "dvc": project.dvc}[words[0]]
    run(*words[1:]).ok()


@pytest.mark.long
@pytest.mark.skipif(not MNIST.is_dir(), reason="the files of MNIST are not present")
def test_mnist_trains_to_90_percent_in_one_epoch(project):
    (project.folder.parent / "shared").symlink_to(MNIST.parent)
    project.edit("params.yaml", "kind: digits\n    path: null", "kind: idx\n    path: ../shared/mnist")
    project.add_deps()

    text = project.ok("dvc", "exp", "run", "-S", "fit.num_epochs=1", "-S", "fit.batch_size=64")

    assert float(re.search(r"valid: Accuracy ([\d.]+)", text)[1]) >= 90


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("loop.py", ["--rounds", "1", "--steps", "10", "--only", "null-64"]),
        pytest.param("records.py", ["--rounds", "1", "--megabytes", "2"], marks=pytest.mark.long),
    ],
)
def test_benchmark_prints_its_table(script, options, tmp_path):
    more = ["--directory", str(tmp_path)] if script == "records.py" else []

    printed = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *options, *more],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert re.search(r"\d\.\d", printed)


def params_of(text):
    """Return the sections of params.yaml in the YAML block *text*; none if it is of another file."""
    content = YAML(typ="safe").load(text)
    return content if isinstance(content, dict) and content.keys() <= Params.model_fields.keys() else {}


PARAMS = [
    pytest.param(content, id=f"{each.name}-{number}")
    for each in pages()
    for number, text in enumerate(each.blocks("yaml"), start=1)
    if (content := params_of(text))
]


@pytest.mark.parametrize("content", PARAMS)
def test_params_on_a_page_are_valid(content):
    assert Params.model_validate(content)


SECTION_OF = dict.fromkeys(("model", "optimizer", "schedule", "parameter_groups"), "build_learner")
"""The section of a param that tables name without one."""


def params_in_text(text):
    """Yield the keys and the value of each param in the text of a page, such as ``fit.keep: {last: 2}``."""
    first = "|".join([*(f"{section}\\." for section in Params.model_fields), *SECTION_OF])
    for path, value in re.findall(rf"`((?:{first})(?:(?<=\.)[\w.]+)?): ([^`]+)`", text):
        keys = path.split(".")
        yield [*filter(None, [SECTION_OF.get(keys[0])]), *keys], YAML(typ="safe").load(value)


@pytest.mark.parametrize("each", pages(), ids=lambda each: each.name)
def test_params_in_the_text_of_a_page_are_valid(each):
    for keys, value in params_in_text(each.text):
        content = {"build_learner": {"optimizer": {"kind": "adam"}}, "fit": {"num_threads": 1}}
        section = content
        for key in keys[:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = value

        is_registered_elsewhere = value == {"kind": "wide"}
        assert is_registered_elsewhere or Params.model_validate(content)
