"""The specification of a learner, and the device that it is trained on."""

import pytest
import torch

from stages.contracts.errors import StageError
from stages.learner import LearnerSpec
from stages.learner.devices import find_device

SPEC = LearnerSpec(
    model={"kind": "mlp"},
    optimizer={"kind": "adam"},
    schedule={"kind": "constant"},
    input_shape=(4,),
    num_classes=3,
    num_outputs=3,
)


def weights(seed):
    model, _, _ = SPEC.build(seed)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_initial_weights_depend_on_the_seed():
    first, other, again = weights(1), weights(2), weights(1)

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_unknown_device_is_rejected_with_a_list_of_devices():
    with pytest.raises(StageError, match=r"auto, cpu"):
        find_device("gpu")
