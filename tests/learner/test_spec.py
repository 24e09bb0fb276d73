"""The specification of a learner, and the device that it is trained on."""

import pytest
import torch

from stages.contracts.config import Use
from stages.contracts.errors import StageError
from stages.devices.compute_settings import find_device
from stages.learner import LearnerSpec
from stages.models import ClassificationStep

SPEC = LearnerSpec(
    model={"kind": "mlp"},
    optimizer={"kind": "adam"},
    schedule={"kind": "constant"},
    input_shape=(4,),
    num_classes=3,
    num_outputs=3,
)
UNSET = {"parameter_groups", "freeze", "label_smoothing", "class_weights", "vocabulary_size"}


class Tagger(ClassificationStep, torch.nn.Embedding):
    def __init__(self, vocabulary_size=3):
        super().__init__(vocabulary_size, 2)


class Classifier(ClassificationStep, torch.nn.Linear):
    def __init__(self, num_classes):
        super().__init__(4, num_classes)


def weights(seed):
    model, _, _ = SPEC.build(seed)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_description_has_only_options_that_are_set():
    named = SPEC.model_copy(update={"freeze": ("weight",)}).model_dump(mode="json")

    assert SPEC.model_dump().keys() == LearnerSpec.model_fields.keys() - UNSET
    assert named.keys() == LearnerSpec.model_fields.keys() - UNSET | {"freeze"}


def test_initial_weights_depend_on_the_seed():
    first, other, again = weights(1), weights(2), weights(1)

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("vocabulary_size", "rows"), [(7, 7), (None, 3)])
def test_model_receives_the_vocabulary_size_of_texts(vocabulary_size, rows):
    """Data without tokens leaves the default of the model."""
    spec = SPEC.model_copy(
        update={"model": Use(kind=f"{__name__}:Tagger"), "vocabulary_size": vocabulary_size}
    )

    model, _, _ = spec.build(1)

    assert model.num_embeddings == rows


def test_error_of_a_model_that_needs_classes_names_the_targets():
    spec = SPEC.model_copy(update={"model": Use(kind=f"{__name__}:Classifier"), "num_classes": None})

    with pytest.raises(TypeError) as caught:
        spec.build(1)

    [note] = caught.value.__notes__
    assert note.startswith("num_classes is None, because the targets of the data are not integers or text")


def test_unknown_device_is_rejected_with_a_list_of_devices():
    with pytest.raises(StageError, match=r"auto, cpu"):
        find_device("gpu")
