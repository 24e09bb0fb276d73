"""Quick tests of the model and the data, to run before a long training."""

import torch

from model import SimClr
from probe import measure_neighbors
from source import images
from stages.data import Batch


def test_source_has_no_classes() -> None:
    """Nothing but the images is read."""
    arrays = images()

    assert arrays.inputs.shape == (1797, 1, 8, 8)
    assert arrays.targets is None


def test_equal_views_have_a_lower_loss_than_those_of_other_images() -> None:
    """The partner of a view is the one at the same place in the batch."""
    torch.manual_seed(0)
    views = torch.rand(8, 1, 8, 8)
    model = SimClr((1, 8, 8))

    equal, other = (model.valid_step(Batch((views, view), None)).loss for view in (views, views.flip(0)))

    assert equal < other


def test_nearest_neighbor_decides_the_class() -> None:
    """Two known samples, and three others of which one is wrong."""
    features = torch.tensor([[0.0], [1.0], [0.1], [0.9], [0.8]])

    assert round(measure_neighbors(features, torch.tensor([0, 1, 0, 1, 0]), labeled=2)) == 67
