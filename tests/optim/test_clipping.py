"""Gradient clipping by value, by norm and by global norm."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from stages.optim import ClipByGlobalNorm, ClipByNorm, ClipByValue, clip

FINITE = st.floats(-1e6, 1e6, width=32)
LISTS = st.lists(
    st.lists(FINITE, min_size=1, max_size=4).map(torch.tensor) | st.none(), min_size=1, max_size=4
)


@pytest.mark.parametrize(
    ("clipping", "clipped"),
    [
        (ClipByValue(value=2.0), [[2.0, -2.0], None, [0.0], [1.0]]),
        (ClipByValue(value=9.0), [[3.0, -4.0], None, [0.0], [1.0]]),
        (ClipByNorm(max_norm=2.5), [[1.5, -2.0], None, [0.0], [1.0]]),
        (ClipByNorm(max_norm=5.0), [[3.0, -4.0], None, [0.0], [1.0]]),
        (ClipByGlobalNorm(max_norm=26**0.5 / 2), [[1.5, -2.0], None, [0.0], [0.5]]),
        (ClipByGlobalNorm(max_norm=9.0), [[3.0, -4.0], None, [0.0], [1.0]]),
    ],
)
def test_clipping_equals_its_definition_and_leaves_the_input_unchanged(clipping, clipped):
    gradients = [torch.tensor([3.0, -4.0]), None, torch.tensor([0.0]), torch.tensor([1.0])]

    found = clip(gradients, clipping)

    assert [None if each is None else pytest.approx(each.tolist()) for each in found] == clipped
    assert gradients[0].tolist() == [3.0, -4.0]


@settings(deadline=None)  # the first call of torch takes long
@given(LISTS, st.floats(1e-3, 1e3))
def test_clipped_gradients_are_within_the_limit_and_keep_their_direction(gradients, limit):
    by_value = clip(gradients, ClipByValue(value=limit))
    by_norm = clip(gradients, ClipByNorm(max_norm=limit))
    together = clip(gradients, ClipByGlobalNorm(max_norm=limit))

    more = limit * (1 + 1e-5)
    assert all(each.abs().max() <= more for each in by_value if each is not None)
    assert all(each.norm() <= more for each in by_norm if each is not None)
    assert sum(each.norm() ** 2 for each in together if each is not None) <= more**2
    for found in (by_value, by_norm, together):
        assert [each is None for each in found] == [each is None for each in gradients]
        for before, after in zip(gradients, found, strict=True):
            assert before is None or (before * after >= 0).all()


@pytest.mark.parametrize(
    "clipping", [ClipByValue(value=9.0), ClipByNorm(max_norm=9.0), ClipByGlobalNorm(max_norm=9.0)]
)
def test_gradients_within_the_limit_keep_their_bits(clipping):
    gradient = torch.randn(7, generator=torch.Generator().manual_seed(3))

    assert torch.equal(clip([gradient], clipping)[0], gradient)


@pytest.mark.parametrize("clipping", [ClipByNorm(max_norm=1.0), ClipByGlobalNorm(max_norm=1.0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gradients_with_a_large_norm_keep_their_direction(clipping, dtype):
    found = clip([torch.full((10_000,), 60000.0, dtype=dtype), None], clipping)[0]

    assert found.dtype == dtype
    assert found.double().norm() == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    "clipping", [ClipByValue(value=2.0), ClipByNorm(max_norm=2.5), ClipByGlobalNorm(max_norm=2.5)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sparse_gradient_is_clipped_like_the_dense_one_and_stays_sparse(clipping, dtype):
    """Gradients with a repeated index, and empty ones, are clipped too."""
    full, empty = (
        torch.sparse_coo_tensor(
            torch.tensor([places]), torch.tensor(values, dtype=dtype), (4,), check_invariants=True
        )
        for places, values in [([0, 2, 0], [1.0, -4.0, 2.0]), ([], [])]
    )

    found = clip([full, None, empty], clipping)

    assert found[0].is_sparse
    assert found[2].is_sparse
    assert torch.equal(found[0].to_dense(), clip([full.to_dense()], clipping)[0])
    assert torch.equal(found[2].to_dense(), torch.zeros(4, dtype=dtype))


def test_clipped_sparse_gradient_stays_on_its_device():
    gradient = torch.eye(2, device="cpu").to_sparse()

    with torch.device("meta"):
        clipped = clip([gradient], ClipByValue(value=0.5))

    assert clipped[0].device == gradient.device


def test_one_launch_scales_all_gradients_of_a_global_clipping():
    gradients = [torch.ones(3, device="meta") for _ in range(100)]

    with CountOperations() as counter:
        clip(gradients, ClipByGlobalNorm(max_norm=1.0))

    assert counter.counts["aten._foreach_mul.Tensor"] == 1
    assert counter.counts["aten.mul.Tensor"] == 1, "that of the factor"


class CountOperations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))
