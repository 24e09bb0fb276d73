"""What the README says is so."""

import re
import sys
from pathlib import Path

from typer.main import get_command

from pipeline.cli import app
from stages.records import read_item

MNIST = Path(__file__).parents[2] / "shared" / "mnist"
README = (Path(__file__).parents[1] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_every_command_is_documented_and_every_documented_one_is_there():
    documented = set(re.findall(r"`learner (\w+)", README))

    assert documented == set(get_command(app).commands)


def test_the_two_commands_are_targets_of_the_makefile():
    makefile = (Path(__file__).parents[1] / "Makefile").read_text()

    assert all(f"\n{target}:" in makefile for target in re.findall(r"\$ make (\w+)", README))


def test_the_script_trains_the_digits_to_97_per_cent(project):
    script = next(block for block in PYTHON if block.startswith("import torch"))
    assert len(script.splitlines()) <= 30
    (project.folder / "script.py").write_text(script)

    text = project.ok(sys.executable, "script.py")

    assert float(re.search(r"epoch 20/20 .* valid: Accuracy ([\d.]+)", text)[1]) >= 97
    assert (project.folder / "digits/checkpoint/trainer-20.mpk.gz").exists()


def named(name):
    return next(block for block in PYTHON if block.startswith(f"# {name}\n"))


def test_the_burn_guide_reaches_96_per_cent(project):
    """On MNIST where it is there, in fewer epochs than the guide has; on digits otherwise."""
    script = named("guide.py")
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


def test_what_was_written_for_lightning_trains_with_few_changes(project):
    (project.folder / "ported.py").write_text(named("ported.py"))

    text = project.ok(sys.executable, "ported.py")

    assert float(re.findall(r"epoch .* valid: Accuracy ([\d.]+)", text)[-1]) >= 90
    assert "epoch  1/10" not in project.ok(sys.executable, "ported.py")


def test_the_custom_loop_learns(project):
    (project.folder / "custom.py").write_text(named("custom.py"))

    losses = [float(line.split()[1]) for line in project.ok(sys.executable, "custom.py").splitlines()]

    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)


def test_a_users_own_model_and_data_run_and_an_edit_reruns_them(project):
    for block in PYTHON:
        if found := re.match(r"# (my_lab/\w+\.py)\n", block):
            path = project.folder / found[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
    project.edit("params.yaml", "kind: digits\n    path: null", 'kind: "my_lab.sources:rings"')
    project.edit("params.yaml", "kind: cnn\n    dropout: 0.5", 'kind: "my_lab.nets:Wide"\n    width: 128')

    told = project.learner("check")
    assert told.code == 1
    for stage, dep in (("load-data", "sources"), ("build-learner", "nets"), ("fit", "nets")):
        assert f"would not rerun {stage}; add to its deps:\n      - my_lab/{dep}.py" in told.out
    project.edit(
        "dvc.yaml",
        "      - stages/data/sources.py\n",
        "      - stages/data/sources.py\n      - my_lab/sources.py\n",
    )
    project.edit("dvc.yaml", "      - stages/models\n", "      - stages/models\n      - my_lab/nets.py\n")
    assert project.ok(sys.executable, "-m", "pipeline", "check") == "params.yaml is valid\n"

    assert "epoch 2/2" in project.ok("dvc", "repro")
    project.edit("my_lab/nets.py", "nn.ReLU()", "nn.Tanh()")
    text = project.ok("dvc", "repro")
    assert "Running stage 'build-learner'" in text
    assert "Stage 'load-data' didn't change" in text
