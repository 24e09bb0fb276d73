"""Class weights and label smoothing of the default cross entropy."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stages.contracts.errors import BuilderError, ParamsError
from stages.data import DatasetInfo, Normalization
from stages.learner import LearnerSpec
from stages.learner.from_params import build_spec
from stages.models import ClassificationStep, Mlp
from stages.params.build_learner_params import BuildLearnerConfig

WEIGHTS = (0.5, 1.0, 2.0)


class Plain(ClassificationStep, nn.Linear):
    """A model of a user."""

    def __init__(self, num_classes):
        super().__init__(4, num_classes)


class Weighted(Plain):
    """A model of a user with a loss of its own, and a buffer with an obvious name."""

    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.register_buffer("class_weights", torch.ones(num_classes))

    def loss(self, logits, targets):
        return F.cross_entropy(logits, targets, self.class_weights)


def info(counts=(60, 30, 10), **changes):
    given = {
        "task": "classification",
        "input_shape": (4,),
        "input_dtype": "float32",
        "target_shape": (),
        "num_classes": len(counts),
        "counts": {"train": sum(counts), "valid": 3},
        "class_counts": {"train": list(counts), "valid": [1, 1, 1]},
        "normalization": Normalization(mean=0.0, std=1.0),
    }
    return DatasetInfo(**{**given, **changes})


def spec(model="mlp", counts=(60, 30, 10), **params):
    model = model if isinstance(model, str) else f"{__name__}:{model.__name__}"
    return build_spec(BuildLearnerConfig.model_validate({"model": {"kind": model}, **params}), info(counts))


@pytest.mark.parametrize("model", ["mlp", Plain], ids=["built in", "user"])
@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({}, {}),
        ({"label_smoothing": 0.1}, {"label_smoothing": 0.1}),
        ({"class_weights": WEIGHTS}, {"weight": torch.tensor(WEIGHTS)}),
        (
            {"class_weights": WEIGHTS, "label_smoothing": 0.2},
            {"weight": torch.tensor(WEIGHTS), "label_smoothing": 0.2},
        ),
    ],
    ids=["none", "smoothing", "weights", "both"],
)
def test_loss_is_the_cross_entropy_of_torch(tmp_path, model, params, options):
    spec(model, **params).write(tmp_path)
    built, _, _ = LearnerSpec.read(tmp_path).build(1)
    inputs, targets = torch.randn(8, 4), torch.arange(8) % 3

    item = built.valid_step((inputs, targets))

    assert torch.equal(item.loss, F.cross_entropy(built(inputs), targets, **options))


def test_loss_has_the_documented_formula():
    model = Mlp((4,), 3)
    model.configure_loss(class_weights=WEIGHTS, label_smoothing=0.2)
    logits, targets, w = torch.randn(5, 3), torch.tensor([0, 1, 2, 2, 0]), torch.tensor(WEIGHTS)

    log_p = logits.log_softmax(1)
    hit = -(1 - 0.2) * w[targets] * log_p[torch.arange(5), targets]
    expected = (hit - 0.2 / 3 * (w * log_p).sum(1)).sum() / w[targets].sum()
    assert torch.allclose(model.loss(logits, targets), expected)


def test_balanced_weights_are_those_of_the_train_split():
    assert spec(class_weights="balanced").class_weights == pytest.approx((100 / 180, 100 / 90, 100 / 30))


def test_weights_are_in_no_record_and_unset_ones_not_in_the_description(tmp_path):
    model, _, _ = spec(class_weights="balanced").build(1)

    assert "_class_weights" not in model.state_dict()
    assert model._class_weights in list(model.buffers())
    assert not {"class_weights", "label_smoothing"} & spec().model_dump().keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_weights": [1, 2]}, "found 2 weights for 3 classes"),
        ({"class_weights": "balanced", "counts": (5, 0, 5)}, "class 1 has no sample in the train split"),
    ],
)
def test_weights_that_do_not_fit_the_data_are_refused(changes, message):
    with pytest.raises(ParamsError, match=message):
        spec(**changes)


def test_weights_for_numbers_as_targets_are_refused():
    config = BuildLearnerConfig(class_weights="balanced")

    with pytest.raises(ParamsError, match="needs classes; the targets are numbers"):
        build_spec(config, info(task="regression", num_classes=None, class_counts=None))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Weighted, r"Weighted.* overrides loss, so class_weights"),
        ("mlp_regressor", "MlpRegressor is not derived"),
    ],
)
def test_model_without_the_default_loss_is_refused(model, message):
    with pytest.raises(BuilderError, match=message):
        spec(model, label_smoothing=0.1).build(1)
