"""The artifacts of a flow run."""

import logging

import pytest

from pipeline.flows.artifacts import Artifacts
from pipeline.flows.run_page import write_curves
from pipeline.revisions.revision import Results
from stages.contracts.history import History


def test_failed_image_is_a_warning(caplog):
    """A history without values gives an image without a size."""
    pytest.importorskip("vl_convert")
    results = Results(None, History(), epochs=1, params={}, metrics={}, checkpoint=None)

    write_curves(results, Artifacts(None, None, logging.getLogger(__name__)), "learner-curves")

    assert "the image of the curves cannot be drawn: ValueError" in caplog.text
