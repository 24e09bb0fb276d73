"""The profile of training steps."""

import json

import pytest
import torch

from stages.contracts.errors import BuilderError
from stages.learner import LearnerBuilder, profile_steps
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.optim import Adam
from stages.renderers import NoRenderer


class Net(ClassificationStep, torch.nn.Linear):
    pass


def measure(directory, **options):
    torch.manual_seed(0)
    batches = [(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(5)]
    builder = LearnerBuilder(directory).devices(["cpu"]).metrics(LossMetric()).renderer(NoRenderer())
    learner = builder.step("eager").build(Net(4, 3), Adam(), 0.1)
    return profile_steps(learner, batches, trace=directory / "trace.json", **options)


def test_parts_add_up_to_the_step(tmp_path):
    found = measure(tmp_path, steps=12, warm_up=3)

    assert found.steps == 12
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert all(seconds > 0 for seconds in found.parts.values()), found.parts
    assert "addmm" in found.operators


def test_trace_has_the_parts_of_the_measured_steps_only(tmp_path):
    measure(tmp_path, steps=12, warm_up=3)

    names = [each["name"] for each in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert [names.count(part) for part in ("forward", "backward", "optimizer")] == [12, 12, 12]


@pytest.mark.parametrize("options", [{"steps": 0, "warm_up": 1}, {"steps": 1, "warm_up": 0}])
def test_numbers_of_steps_are_checked(options, tmp_path):
    with pytest.raises(BuilderError, match="steps and warm_up must be at least 1"):
        measure(tmp_path, **options)
