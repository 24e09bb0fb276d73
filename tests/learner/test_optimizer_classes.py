"""Runs with the optimizers of torch.optim, by name or import path, resume exactly."""

import pytest
import torch
from long_tests import long
from run_files import read_run_files
from stop_after import StopAfter
from torch import nn

from stages.contracts.errors import BuilderError
from stages.models import ClassificationStep
from stages.optim import OptimizerUse
from stages.optim.config import BUILT_IN, OUR_KINDS
from stages.renderers import NoRenderer

SPARSE = "sparse_adam"
NAMED = sorted({*BUILT_IN} - {*OUR_KINDS, SPARSE})
NEEDS_MATRICES = "torch.optim:Muon"
IMPORTED = sorted(
    f"torch.optim:{name}"
    for name, each in vars(torch.optim).items()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
)


class Matrices(ClassificationStep, nn.Sequential):
    pass


class Embedded(ClassificationStep, nn.Module):
    """A model whose only parameter has sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 3, sparse=True)

    def forward(self, inputs):
        return self.table((inputs[:, :2] > 0).long().sum(1))


def model_for(kind, net):
    torch.manual_seed(3)
    if kind in (SPARSE, "torch.optim:SparseAdam"):
        return Embedded()
    if kind == NEEDS_MATRICES:
        return Matrices(nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    return net()


def run(start, tiny, kind, directory, stop_after=None):
    """Train, or resume; *stop_after* is the number of steps after which the run is interrupted."""
    net, loaders = tiny
    builder = start(directory, epochs=2).checkpoint("auto")
    builder.renderer(StopAfter(builder.interrupter(), stop_after) if stop_after else NoRenderer())
    learner = builder.build(model_for(kind, net), OptimizerUse(kind=kind), 0.01)
    learner.fit(*loaders())
    return learner


@pytest.mark.parametrize(
    "kind", [*NAMED, SPARSE, NEEDS_MATRICES, *(long(kind) for kind in IMPORTED if kind != NEEDS_MATRICES)]
)
def test_resumed_run_equals_uninterrupted_run_for_each_optimizer_of_torch(start, tiny, kind, tmp_path):
    """The run of 2 epochs of 6 steps is interrupted within the second epoch."""
    run(start, tiny, kind, tmp_path / "uninterrupted")

    run(start, tiny, kind, tmp_path / "resumed", stop_after=8)
    learner = run(start, tiny, kind, tmp_path / "resumed")

    assert learner.resumed == "in epoch 2, after batch 2 of training"
    assert read_run_files(tmp_path / "resumed") == read_run_files(tmp_path / "uninterrupted")


def test_optimizer_by_name_gives_the_weights_of_its_class(start, tiny, tmp_path):
    net, loaders = tiny
    by_name = start(tmp_path / "name").build(net(), OptimizerUse(kind="nadam", momentum_decay=0.1), 0.01)
    model = net()
    of_torch = torch.optim.NAdam(model.parameters(), lr=0.01, momentum_decay=0.1)
    by_class = start(tmp_path / "class").build(model, of_torch)

    weights = [list(each.fit(*loaders()).parameters()) for each in (by_name, by_class)]

    assert all(map(torch.equal, *weights))


def test_sparse_adam_with_dense_gradients_is_refused_with_the_parameter(start, tiny, tmp_path):
    net, loaders = tiny
    learner = start(tmp_path).build(net(), OptimizerUse(kind=SPARSE), 0.01)

    with pytest.raises(BuilderError, match=r"gradient of 0\.weight is dense, which SparseAdam does not supp"):
        learner.fit(*loaders())
