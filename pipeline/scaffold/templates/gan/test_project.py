"""Quick tests of the networks and the data, to run before a long training."""

import torch

from model import Gan
from source import ring
from train import Trainer, measure_distance


def test_distance_is_zero_for_equal_points_and_grows_with_the_shift() -> None:
    """The measure compares two sets of points."""
    points = torch.from_numpy(ring(samples=80).inputs)

    near, far = (measure_distance(points, points + shift) for shift in (0.5, 2.0))

    assert abs(measure_distance(points, points)) < 1e-6
    assert 0 < near < far


def test_each_step_changes_its_own_network_only() -> None:
    """A step of the critic keeps the generator, and the reverse."""
    torch.manual_seed(0)
    trainer = Trainer(Gan(), 0.01)
    real = torch.from_numpy(ring(samples=80).inputs)

    def read_weights() -> list[torch.Tensor]:
        networks = (trainer.gan.generator, trainer.gan.critic)
        return [torch.nn.utils.parameters_to_vector(each.parameters()).clone() for each in networks]

    before = read_weights()
    trainer.train_critic(real)
    between = read_weights()
    trainer.train_generator(80)
    after = read_weights()

    assert [a.equal(b) for a, b in zip(before, between, strict=True)] == [True, False]
    assert [a.equal(b) for a, b in zip(between, after, strict=True)] == [False, True]
