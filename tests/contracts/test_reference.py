"""The reference of params.yaml lists every param and every kind."""

import re
from typing import get_args

import pytest
import reference_page

from stages.records.config import RecorderConfig


@pytest.mark.parametrize("param", reference_page.REGISTRIES)
def test_reference_lists_every_kind(param):
    [entry] = re.findall(rf"\n### `\w+\.{param}`\n.*?(?=\n##|\Z)", reference_page.page(), re.DOTALL)

    assert re.findall(r"\n\* `(\w+)`: ", entry) == list(reference_page.REGISTRIES[param])


def test_arguments_and_defaults_are_those_of_the_classes():
    page = reference_page.page()

    assert "\n* `rmsprop`: `learning_rate: 0.01`, `alpha: 0.99`, `momentum: 0.9`, `epsilon: 1e-5`," in page
    assert "\n* `swa`: `start_epoch`\n" in page
    assert "\n* `top_k`: `k`, `pad_token: null`\n" in page
    assert "\n* `normalize`: `mean`, `std`, `ragged: list`\n" in page
    assert "\n* `loss`: no arguments\n" in page


def test_reference_lists_every_recorder():
    text = reference_page.docstrings_of(RecorderConfig)["kind"]

    for kind in get_args(RecorderConfig.model_fields["kind"].annotation):
        assert f"``{kind}``" in text


def test_page_of_all_params_agrees_with_the_classes():
    assert reference_page.PAGE.read_text() == reference_page.page(), "run tests/shared/reference_page.py"
