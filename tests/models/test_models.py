"""Models, and the steps that make a module trainable."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stages.contracts.config import Use
from stages.contracts.errors import BuilderError, PluginError
from stages.models import (
    ClassificationStep,
    Cnn,
    CnnConfig,
    Mlp,
    MlpRegressor,
    MlpRegressorConfig,
    RegressionStep,
    backward,
    build_model,
)
from stages.models.cnn import AveragePool


def test_cnn_has_layers_of_burn_guide():
    shapes = {name: tuple(p.shape) for name, p in Cnn((1, 28, 28), 10).named_parameters() if "weight" in name}

    assert shapes == {
        "conv1.weight": (8, 1, 3, 3),
        "conv2.weight": (16, 8, 3, 3),
        "linear1.weight": (512, 1024),
        "linear2.weight": (10, 512),
    }


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (2, 5, 64)])
def test_cnn_takes_images_of_any_size(shape):
    assert Cnn(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("shape", [(64,), (1, 4, 8)])
def test_cnn_refuses_input_that_is_not_an_image(shape):
    with pytest.raises(BuilderError, match="5×5 pixels or more.*Use 'mlp'"):
        Cnn(shape, 7)


def test_mixin_makes_module_trainable():
    class Net(ClassificationStep, nn.Sequential):
        def loss(self, logits, targets):
            return nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)

    net = Net(nn.Linear(4, 3))
    step = net.train_step((torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))

    assert [gradient.shape for gradient in step.gradients] == [(3, 4), (3,)]
    assert step.item.size == 5
    assert all(parameter.grad is None for parameter in net.parameters())


def test_gradients_equal_autograd_and_are_none_without_dependence():
    net = nn.ModuleList(
        [nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)]
    )
    net[1].requires_grad_(False)

    used, frozen, unused = backward(net, net[0](torch.tensor([[3.0, 4.0]])).sum())

    assert used.tolist() == [[3.0, 4.0]]
    assert frozen is None
    assert unused is None


@pytest.mark.parametrize(
    ("outputs", "targets"), [(2, (5, 2)), (1, (5,)), (1, (5, 1))], ids=["equal", "one number", "one column"]
)
def test_regressor_output_has_shape_of_targets(outputs, targets):
    net = MlpRegressor((3,), outputs, hidden_sizes=(4,))

    assert net.train_step((torch.randn(5, 3), torch.randn(targets))).item.output.shape == targets
    assert net.valid_step((torch.randn(5, 3), torch.randn(targets))).output.shape == targets


class Identity(RegressionStep, torch.nn.Module):
    """A regressor that predicts its inputs."""

    def forward(self, inputs):
        return inputs


@pytest.mark.parametrize(
    ("predictions", "targets"),
    [((4, 2, 3), (4, 3, 2)), ((5, 2), (5, 1, 2)), ((4, 1), (2, 2)), ((6,), (3, 2)), ((4, 1, 1), (4,))],
)
def test_mismatched_predictions_are_refused_with_both_shapes(predictions, targets):
    with pytest.raises(BuilderError) as caught:
        Identity().valid_step((torch.randn(predictions), torch.randn(targets)))

    assert f"predictions {predictions} for targets {targets}" in str(caught.value)


def test_vector_of_predictions_fits_column_of_targets():
    targets = torch.randn(4, 1)

    item = Identity().valid_step((targets[:, 0].clone(), targets))

    assert item.output.shape == (4, 1)
    assert item.loss == 0


def test_model_is_built_from_params_and_data():
    offered = {"input_shape": (1, 8, 8), "num_outputs": 10, "num_classes": 10}

    assert build_model(CnnConfig(hidden_size=32), offered).linear1.out_features == 32
    assert build_model(MlpRegressorConfig(kind="mlp_regressor"), offered).layers[0].in_features == 64
    assert isinstance(build_model(Use(kind="stages.models:Mlp"), offered), Mlp)


def test_model_that_does_not_fit_into_memory_is_reported():
    config = CnnConfig(hidden_size=2**20, pool_size=2**20)

    with pytest.raises(PluginError, match=r"model 'cnn' with .* does not fit into memory .*Reduce its sizes"):
        build_model(config, {"input_shape": (1, 8, 8), "num_outputs": 10, "num_classes": 10})


def test_error_names_missing_steps():
    use = Use.model_validate({"kind": "torch.nn:Linear", "in_features": 1, "out_features": 1})

    with pytest.raises(PluginError, match="a Linear with no train_step and no valid_step"):
        build_model(use, {})


def test_cross_entropy_of_one_logit_is_refused():
    """Its value and its gradient are 0, so the model would not train."""

    class Binary(ClassificationStep, nn.Linear):
        pass

    with pytest.raises(BuilderError, match=r"returns one, \(5, 1\).*binary_cross_entropy_with_logits"):
        Binary(3, 1).train_step((torch.randn(5, 3), torch.ones(5, 1)))


@pytest.mark.parametrize("size", [(24, 24), (4, 5), (11, 8), (8, 3)])
def test_average_pool_equals_that_of_torch_in_both_passes(size):
    images = torch.randn(2, 3, *size, requires_grad=True)
    weights = torch.randn(2, 3, 8, 8)
    expected = nn.functional.adaptive_avg_pool2d(images, 8)
    pooled = AveragePool(*size, 8)(images)

    gradients = [torch.autograd.grad((each * weights).sum(), images)[0] for each in (expected, pooled)]

    assert torch.allclose(pooled, expected, atol=1e-6)
    assert torch.allclose(*gradients, atol=1e-6)


def test_cnn_has_no_operation_without_a_deterministic_backward_pass():
    """The adaptive pool of torch has none on CUDA."""
    model, called = Cnn((1, 28, 28), 10), []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **kwargs or {})

    with Record():
        model(torch.rand(2, 1, 28, 28)).sum().backward()

    assert called
    assert not [each for each in called if "adaptive" in each]


def test_cnn_accepts_images_of_another_size_than_it_was_built_for():
    assert Cnn((1, 28, 28), 10)(torch.rand(2, 1, 20, 17)).shape == (2, 10)


def test_cnn_has_no_weights_for_its_pool_in_a_record():
    assert not [name for name in Cnn((1, 28, 28), 10).state_dict() if "pool" in name]
