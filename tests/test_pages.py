"""Each page of documentation is correct: its programs run, its commands exist, its links resolve."""

import re
import shlex
import subprocess
import sys

import pytest
from command_line import LEARNER, parse, walk_commands
from dvc.cli.parser import get_main_parser
from pages import ROOT, page, pages
from torch.distributed.run import get_args_parser

from stages.records import read_item

MNIST = ROOT.parent / "shared" / "mnist"
PAGES = pages()
README = page("README.md")
PROGRAMS = [
    pytest.param(text, id=f"{each.name}-{number}")
    for each in PAGES
    for number, text in enumerate(each.blocks("python"), start=1)
    if not re.match(r"# (my_lab/\w+|guide|ported|custom)\.py\n", text)  # each of these has a test below
]
COMMANDS = [(each.name, command) for each in PAGES for command in each.commands()]
PARTS = sorted(path.parent for kind in ("stages", "pipeline") for path in (ROOT / kind).glob("*/__init__.py"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_python_block_runs_as_a_script(program, project, tmp_path):
    (tmp_path / "program.py").write_text(program)
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


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_command_of_a_page_is_accepted(name, command):
    """Parse the command as the real program does; a placeholder in capitals is a valid value."""
    for part in re.split(r" && | ; ", command):
        words = shlex.split(part)
        program, arguments = words[0], words[1:]
        if program == "learner":
            parse(arguments)
        elif program == "dvc":
            assert get_main_parser().parse_args(arguments).func
        elif program == "torchrun":
            assert get_args_parser().parse_args(arguments).training_script == "pipeline"
        elif program == "make":
            assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
        elif program == "python":
            assert (ROOT / arguments[0]).exists() or arguments[0] == "-m"
        else:
            assert program in {".", "cd", "git", "pip", "prefect", "export", "kill", "pytest"}, name


def test_every_command_is_documented():
    documented = {name for each in PAGES for name in re.findall(r"learner ([\w-]+)", each.text)}

    assert set(LEARNER.commands) <= documented


def test_every_option_of_a_page_exists():
    options = set(re.findall(r"`(--[a-z][\w-]+)", "".join(each.text for each in PAGES)))
    known = {option for _, command in walk_commands() for option in option_names(command)}
    known |= set(re.findall(r"--[a-z][\w-]+", get_args_parser().format_help()))  # torchrun's
    programs = "".join(
        path.read_text() for kind in ("benchmarks", "tests") for path in (ROOT / kind).rglob("*.py")
    )

    assert {option for option in options - known if f'"{option}"' not in programs} <= {
        "--requeue",
        "--set-param",
        "--user",
    }


def option_names(command):
    return [name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]]


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_links_of_a_page_resolve(each):
    missing = [target for target in each.links() if not (each.path.parent / target).exists()]

    assert not missing


@pytest.mark.parametrize("folder", PARTS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_every_part_has_a_page_of_readable_length(folder):
    lines = (folder / "README.md").read_text().splitlines()

    assert 20 <= len(lines) <= 90


def test_readme_is_short():
    assert len(README.text.splitlines()) <= 200


def program_named(name, text):
    return next(block for block in text.blocks("python") if block.startswith(f"# {name}\n"))


def test_readme_program_trains_the_digits_to_97_percent(project):
    [script] = [block for block in README.blocks("python") if "LearnerBuilder" in block]
    (project.folder / "script.py").write_text(script)

    text = project.ok(sys.executable, "script.py")

    assert len(script.splitlines()) <= 30
    assert float(re.findall(r"epoch .* valid: Accuracy ([\d.]+)", text)[-1]) >= 97
    assert (project.folder / "digits/checkpoint").is_dir()


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


def test_program_ported_from_lightning_trains_and_resumes(project):
    (project.folder / "ported.py").write_text(
        program_named("ported.py", page("stages/learner/from_lightning.md"))
    )

    text = project.ok(sys.executable, "ported.py")

    assert float(re.findall(r"epoch .* valid: Accuracy ([\d.]+)", text)[-1]) >= 90
    assert "epoch  1/10" not in project.ok(sys.executable, "ported.py")


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
    project.edit("params.yaml", "kind: cnn\n    dropout: 0.5", 'kind: "my_lab.nets:Wide"\n    width: 128')

    checked = project.learner("check")
    assert checked.code == 1
    assert all(checked.out.count(f"my_lab/{name}.py") >= 1 for name in ("sources", "nets"))
    source, models = "      - stages/data/sources.py\n", "      - stages/models\n"
    project.edit("dvc.yaml", source, f"{source}      - my_lab/sources.py\n")
    project.edit("dvc.yaml", models, f"{models}      - my_lab/nets.py\n")
    assert project.ok(sys.executable, "-m", "pipeline", "check") == "params.yaml is valid\n"

    assert "epoch 2/2" in project.ok("dvc", "repro")
    project.edit("my_lab/nets.py", "nn.ReLU()", "nn.Tanh()")
    text = project.ok("dvc", "repro")
    assert "Running stage 'build-learner'" in text
    assert "Stage 'load-data' didn't change" in text


def test_commands_of_the_readme_run(finished):
    """Run every `dvc` and `learner` command of the page, in its order, after `make repro`."""
    finished.ok("dvc", "exp", "run", "-q", "-n", "other", "-S", "fit.num_epochs=3")
    skipped = re.compile(r"make|pip|git|cd|learner (init|serve|push|sweep)|prefect|torchrun|\. ")

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
    if words[0] == "learner":
        words[:1] = [sys.executable, "-m", "pipeline"]
    project.ok(*words)


@pytest.mark.long
@pytest.mark.skipif(not MNIST.is_dir(), reason="the files of MNIST are not present")
def test_mnist_trains_to_90_percent_in_one_epoch(project):
    (project.folder.parent / "shared").symlink_to(MNIST.parent)
    source = ("load_data.source.kind=idx", "load_data.source.path=../shared/mnist")
    params = [word for value in (*source, "fit.num_epochs=1", "fit.batch_size=256") for word in ("-S", value)]

    text = project.ok("dvc", "exp", "run", *params)

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
