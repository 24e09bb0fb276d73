"""The walk in stages/README.md names the files that a batch passes."""

import re
import sys
from pathlib import Path

import pytest
import torch

import stages
from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
from stages.learner import LearnerBuilder
from stages.metrics import AccuracyMetric, LossMetric
from stages.models import Mlp
from stages.optim import Adam
from stages.records import NamedMpkGzFileRecorder
from stages.renderers import PlainRenderer

FOLDER = Path(stages.__file__).parent
STEADY = 5
"""A batch after which nothing is done for the first time."""


class Profiler(PlainRenderer):
    """Collects the files of stages/ whose functions are called from one step to the next."""

    def __init__(self):
        super().__init__()
        self.files, self.calls, self.steps = set(), 0, 0

    def step(self, progress):
        super().step(progress)
        self.steps += 1
        sys.setprofile(self.profile if self.steps == STEADY else None)

    def profile(self, frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(FOLDER):
            self.files.add(path.relative_to(FOLDER).as_posix())
            self.calls += 1


@pytest.fixture(scope="module")
def profiler(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    images = torch.randint(256, (64, 1, 4, 4), dtype=torch.uint8)
    dataset = TensorDataset(images, torch.randint(10, (64,)))
    loader = DataLoaderBuilder(NormalizeBatcher(0.5, 0.5)).batch_size(8).shuffle(1).build(dataset)
    builder = LearnerBuilder(directory).metrics(LossMetric(), AccuracyMetric()).devices(["cpu"]).seed(1)
    builder.renderer(profiler := Profiler()).with_file_checkpointer(NamedMpkGzFileRecorder()).num_epochs(1)

    builder.build(Mlp((1, 4, 4), 10), Adam(), 1e-3).fit(loader)
    return profiler


def test_step_makes_few_calls(profiler):
    """Each call costs about a microsecond, which is what a small model waits for."""
    assert profiler.calls <= 49


def test_walk_on_the_page_has_every_file_that_a_batch_passes(profiler):
    page = (FOLDER / "README.md").read_text()
    walk = page.partition("## The path of a batch")[2].partition("\n## ")[0]
    assert profiler.files == set(re.findall(r"^\| \[`([\w/]+\.py)`\]", walk, re.MULTILINE))
