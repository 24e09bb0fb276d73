"""The docstrings that serve as the reference of params.yaml list every kind with its arguments."""

import inspect
import re
from typing import Annotated, get_args

import pytest
import reference_page

from pipeline.yaml_files import load_yaml
from stages.contracts import plugins
from stages.load_data import LoadDataConfig
from stages.metrics.registry import BUILT_IN as METRICS
from stages.models.config import BUILT_IN as MODELS
from stages.optim.config import Optimizer
from stages.params.build_learner_params import BuildLearnerConfig
from stages.params.fit_params import FitConfig
from stages.records.config import RecorderConfig

SHARED = {"kind", "clipping", "initial", "per"}
"""Arguments that all kinds of a part have; the text above the list names them."""
FIELDS = {
    "optimizer": (BuildLearnerConfig, "optimizer"),
    "schedule": (BuildLearnerConfig, "schedule"),
    "model": (BuildLearnerConfig, "model"),
    "source": (LoadDataConfig, "source"),
    "augmentation": (FitConfig, "augment"),
    "clipping": (Optimizer, "clipping"),
}


def kinds_in(annotation):
    """Return every config class with a kind in *annotation*, at any depth."""
    fields = getattr(annotation, "model_fields", {})
    if get_args(getattr(fields.get("kind"), "annotation", None)):
        yield annotation
    for each in get_args(annotation):
        yield from kinds_in(each)


def reference(config, name):
    """Return kind to argument to default from the docstring of the field *name*; ... if it has no default."""
    text = config.model_fields[name].description
    found = {}
    for item in re.split(r"^ *\* ", text, flags=re.MULTILINE)[1:]:
        kind, *arguments = re.findall(r"``(.*?)``", item)
        pairs = (each.partition(": ") for each in arguments)
        found[kind] = {argument: load_yaml(value) if colon else ... for argument, colon, value in pairs}
    return found


def fields_of(config):
    """Return argument to default of one kind; ... if it is required."""
    found = {}
    for name, field in config.model_fields.items():
        if name not in SHARED:
            default = getattr(field.default, "kind", field.default)
            default = list(default) if isinstance(default, tuple) else default
            found[name] = ... if field.is_required() else default
    return found


@pytest.mark.parametrize("part", FIELDS)
def test_reference_lists_every_kind_with_its_arguments(part):
    config, name = FIELDS[part]
    field = config.model_fields[name]
    classes = {
        each.model_fields["kind"].annotation: each for each in kinds_in(Annotated[field.annotation, 0])
    }

    expected = {get_args(kind)[0]: fields_of(each) for kind, each in classes.items()}
    assert len(expected) > 2
    assert reference(config, name) == expected


def test_reference_lists_every_metric_with_its_arguments():
    expected = {}
    for kind in METRICS:
        parameters = inspect.signature(plugins.find("metric", kind, METRICS)).parameters
        expected[kind] = {
            name: ... if each.default is each.empty else each.default
            for name, each in parameters.items()
            if "Callable" not in str(each.annotation)  # params.yaml cannot write a function
        }

    assert reference(FitConfig, "metrics") == expected


def test_reference_lists_every_model():
    assert set(reference(BuildLearnerConfig, "model")) == set(MODELS)


def test_reference_lists_every_recorder():
    text = RecorderConfig.model_fields["kind"].description

    for kind in get_args(RecorderConfig.model_fields["kind"].annotation):
        assert f"``{kind}``" in text


def test_page_of_all_params_agrees_with_the_docstrings():
    assert reference_page.PAGE.read_text() == reference_page.page(), "run tests/shared/reference_page.py"
