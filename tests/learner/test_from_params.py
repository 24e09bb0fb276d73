"""Each param of `fit` that the builder has an option for sets that option."""

import re

import pytest

from stages.learner import LearnerBuilder
from stages.learner.from_params import configure_builder
from stages.params.fit_params import FitConfig, FitContext

CHANGES = {
    "averaging": {"kind": "ema"},
    "burn": "0.22",
    "checkpoint_every_seconds": 7.0,
    "checkpoint_every_steps": 7,
    "compile": True,
    "deterministic": True,
    "device": ["cpu", "cpu"],
    "early_stopping": {"n_epochs": 7},
    "fast_path": "off",
    "grads_accumulation": {"batches": 7},
    "gradient_checkpointing": True,
    "hooks": ["frozen_norms"],
    "keep": {"last": 7},
    "loggers": [{"kind": "tensorboard"}],
    "max_unsaved_seconds": 7.0,
    "metrics": ["loss"],
    "non_finite": {"kind": "skip"},
    "num_epochs": 7,
    "num_threads": 7,
    "portable": True,
    "precision": "bf16",
    "recorder": {"kind": "bin"},
    "sanity_check": 7,
    "seed": 7,
    "step": "eager",
    "strategy": "fsdp",
    "sync_batch_norm": True,
    "telemetry": [],
    "validate_every": 7,
}


def options(folder, **params):
    """Return the text of all options of the builder for *params*, without the addresses of objects."""
    builder = configure_builder(FitConfig(**params), LearnerBuilder(folder), FitContext())
    return re.sub(" at 0x[0-9a-f]+", "", str(vars(builder)))


@pytest.mark.parametrize(("name", "value"), CHANGES.items(), ids=CHANGES)
def test_param_sets_an_option_of_the_builder(name, value, tmp_path):
    base = {"num_threads": 1} if name == "portable" else {}

    assert options(tmp_path, **base, **{name: value}) != options(tmp_path, **base)
