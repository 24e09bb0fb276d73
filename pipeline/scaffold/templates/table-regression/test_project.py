"""Quick tests of the table and the model, to run before a long training."""

from pathlib import Path

import numpy as np
import torch

from make_houses import make_houses
from model import Regressor
from stages.data.sources.tables import table
from stages.learner import overfit


def test_table_has_a_feature_for_each_district_and_no_missing_value(tmp_path: Path) -> None:
    """A missing district is a category of its own, a missing number the mean of its column."""
    make_houses(tmp_path / "houses.csv")

    arrays = table(str(tmp_path / "houses.csv"), "price", categorical=["district"], missing="mean")

    districts = [name for name in arrays.facts["feature_names"] if name.startswith("district=")]
    assert districts == ["district=bay", "district=inland", "district=ocean", "district="]
    assert bool(np.isfinite(arrays.inputs[:]).all())


def test_model_learns_a_sum() -> None:
    """A hundred steps reduce the loss to a tenth."""
    torch.manual_seed(0)
    inputs = torch.rand(64, 3)
    batch = inputs, inputs.sum(dim=1)
    model = Regressor((3,))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    losses = overfit(model, optimizer, batch, steps=100)

    assert losses[-1] < losses[0] / 10
