"""Augmentation: random changes of the inputs of a split, before its batches are combined and normalized."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from stages.contracts import plugins
from stages.contracts.config import Use, arguments_of
from stages.contracts.errors import BuilderError, PluginError
from stages.contracts.seeds import derive_seed
from stages.data.augment.augmentation_config import AUGMENTATIONS, BuiltIn
from stages.data.augment.image_operations import augment_images
from stages.data.augment.sample_draws import SampleDraws
from stages.data.datasets import Samples, TensorDataset
from stages.data.random_state import seed_generators

Augmentation = BuiltIn | Callable[[Any], Any]
"""A built-in kind, or a transform that is called with the input of each sample and returns another one."""


class Augmenter:
    """The augmentation of a split: a pure function of (seed, epoch, index) for each sample.

    Built-in kinds change all images of a batch together. Before a transform is called with an input, the
    generators of torch, Python and NumPy are seeded for that sample.
    """

    def __init__(self, augmentations: Sequence[Augmentation], seed: int) -> None:
        self._augmentations = [(f"augment-{n}", augmentation) for n, augmentation in enumerate(augmentations)]
        self._seed = seed

    @property
    def runs_user_code(self) -> bool:
        """True if a transform may draw from the global generators, whose state is then not restored."""
        return not all(isinstance(augmentation, BuiltIn) for _, augmentation in self._augmentations)

    def check(self, dataset: TensorDataset) -> None:
        """Raise `BuilderError` if built-in kinds cannot change the first input; call no transform of a user.

        In a worker process the same error would be reported with a traceback.
        """
        if len(dataset) and not self.runs_user_code:
            self.augment(dataset.__getitems__([0]), 1, [0])

    def augment(self, items: Any, epoch: int, indices: Sequence[int] | Tensor) -> Any:
        """Return *items*, the samples at *indices*, with new inputs; other parts of a sample are unchanged.

        Raises `BuilderError` if a built-in kind cannot change an input, for example because it is no image.
        """
        indices = torch.as_tensor(indices)
        if isinstance(items, Samples):
            inputs = _stack(self._change(items.inputs, epoch, indices))
            if isinstance(inputs, Tensor):
                return Samples(inputs, items.targets)
        else:
            inputs = self._change([item[0] for item in items], epoch, indices)
        return [(changed, *item[1:]) for changed, item in zip(inputs, items, strict=True)]

    def _change(self, inputs: Any, epoch: int, indices: Tensor) -> Any:
        for name, augmentation in self._augmentations:
            draws = partial(SampleDraws, derive_seed(self._seed, name, epoch))
            if isinstance(augmentation, BuiltIn):
                inputs = _change_images(augmentation, inputs, draws, indices)
            else:
                inputs = _call_for_each(augmentation, inputs, draws(indices).seeds())
        return inputs


def _call_for_each(transform: Callable[[Any], Any], inputs: Any, seeds: Sequence[int]) -> list[Any]:
    changed = []
    for value, seed in zip(inputs, seeds, strict=True):
        seed_generators(seed)
        changed.append(transform(value))
    return changed


def _change_images(
    config: BuiltIn, inputs: Any, make_draws: Callable[[Tensor], SampleDraws], indices: Tensor
) -> Any:
    """Return *inputs* after a built-in kind: together if all have the same shape, else one by one."""
    inputs = _stack(inputs)
    if isinstance(inputs, Tensor):
        return torch.from_numpy(augment_images(config, inputs.numpy(), make_draws(indices)))
    return [
        torch.from_numpy(augment_images(config, image[None].numpy(), make_draws(index[None])))[0]
        for image, index in zip(inputs, indices, strict=True)
    ]


def _stack(inputs: Any) -> Any:
    """Return *inputs* as one tensor if they are tensors of one shape and dtype, else unchanged."""
    if isinstance(inputs, Tensor) or not all(isinstance(item, Tensor) for item in inputs):
        return inputs
    return torch.stack(inputs) if len({(item.shape, item.dtype) for item in inputs}) == 1 else inputs


def build_augmentation(config: BuiltIn | Use) -> Augmentation:
    """Return the augmentation that *config* names: a built-in kind, or an instance of a class or a function.

    A class is built with the arguments in *config*; a function receives them at each call, after the input.
    Raises `PluginError` if it cannot be built.
    """
    if not isinstance(config, Use):
        return config
    augmentation = plugins.find("augmentation", config.kind, AUGMENTATIONS)
    arguments = arguments_of(config)
    if isinstance(augmentation, type):
        augmentation = plugins.build("augmentation", config.kind, augmentation, arguments)
    elif arguments:
        augmentation = partial(augmentation, **arguments)
    try:
        return check_augmentation(augmentation)
    except BuilderError as error:
        raise PluginError(f"augmentation {config.kind!r}: {error}") from None


def check_augmentation(augmentation: Any) -> Augmentation:
    """Return *augmentation*. Raises `BuilderError` if it cannot be called with an input."""
    if isinstance(augmentation, BuiltIn) or (callable(augmentation) and not isinstance(augmentation, type)):
        return augmentation
    name = augmentation.__name__ if isinstance(augmentation, type) else type(augmentation).__name__
    raise BuilderError(
        f"an augmentation must be a built-in kind, a function of an input, or an object that can be called "
        f"with one; found {name}. Pass an instance of a class, not the class"
    )
