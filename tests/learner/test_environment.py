"""What a checkpoint contains of the build and the machine, and what a resume reports."""

import json
import platform

import pytest
import torch
from torch.torch_version import TorchVersion

from stages.learner.run_state import describe_differences, describe_environment

CPU, CUDA = "2.13.0+cpu", "2.13.0+cu130"


@pytest.fixture
def use_build(monkeypatch):
    """Return a function that sets the version of torch, with its local label, and the machine."""

    def use_build(version, machine="x86_64"):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        monkeypatch.setattr(platform, "machine", lambda: machine)

    return use_build


@pytest.mark.parametrize(("before", "after"), [(CPU, CUDA), (CUDA, CPU), ("2.13.0", CUDA)])
def test_resume_on_another_build_reports_both(before, after, train, use_build, tmp_path, caplog):
    use_build(before)
    train(tmp_path, epochs=1)
    use_build(after)

    train(tmp_path, epochs=2, checkpoint=1)

    assert f"made with torch build {before}, and this run uses torch build {after}: " in caplog.text
    assert f"Training with torch build {after}, machine x86_64" in (tmp_path / "experiment.log").read_text()


def test_resume_on_the_same_build_reports_nothing(train, tmp_path, caplog):
    train(tmp_path, epochs=1)

    train(tmp_path, epochs=2, checkpoint=1)

    assert "was made with" not in caplog.text


@pytest.mark.parametrize("content", [None, "", "[1]", '"text"', "{"])
def test_without_an_intact_file_the_public_version_is_compared(content, train, use_build, tmp_path, caplog):
    use_build("2.12.1+cpu")
    train(tmp_path, epochs=1)
    (tmp_path / "environment.json").unlink()
    if content is not None:
        (tmp_path / "environment.json").write_text(content)

    use_build(CUDA, "aarch64")
    train(tmp_path, epochs=2, checkpoint=1)

    assert "made with torch 2.12.1, and this run uses torch 2.13.0: " in caplog.text


def test_environment_that_cannot_be_written_does_not_end_the_run(train, tmp_path, caplog):
    (tmp_path / "environment.json").mkdir()

    assert train(tmp_path, epochs=1).epoch == 1
    assert "a resume on another machine will not be reported" in caplog.text


def test_ranks_and_the_strategy_are_reported_only_if_they_differ():
    device = torch.device("cpu")
    one, two = (describe_environment(device, "f32", ranks=ranks) for ranks in (1, 2))
    sharded = describe_environment(device, "f32", ranks=2, strategy="fsdp")

    assert describe_differences(one, one) == ("", "")
    assert describe_differences(one, two) == ("ranks 1", "ranks 2")
    assert describe_differences(sharded, two) == ("strategy fsdp", "strategy ddp")
    assert describe_differences({}, two) == ("", "")
    assert json.loads(json.dumps(sharded)) == sharded, "a record holds plain values"
