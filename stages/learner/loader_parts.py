"""The parts of a loader: datasets and samplers at any depth, which have an epoch or random generators.

`Subset(ConcatDataset([mine]))` and a sampler that wraps another one have these in their attributes. The walk
follows the attributes of loaders, datasets and samplers, and the entries of short lists and dicts in them. It
does not enter other objects, such as tensors, modules and tables.
"""

import logging
import random
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from stages.devices.rng import derive_seed
from stages.learner.batches import LoaderOptions
from stages.learner.resume.training_state import Stateful, attributes_of

MAX_DEPTH = 8
MAX_ENTRIES = 1000
"""Entries of a list or a dict that are followed; a list of as many paths or samples has no datasets."""
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)

log = logging.getLogger(__name__)

_first_seeds: WeakKeyDictionary[torch.Generator, int] = WeakKeyDictionary()
"""The seeds that generators had before a run seeded them."""


def set_loader_epoch(loader: Any, epoch: int, seed: int) -> None:
    """Call ``set_epoch`` of *loader*, its datasets and its samplers, and seed their generators for *epoch*.

    The generators of *loader* and of its samplers are seeded with *seed*. A `torch.Generator` deeper inside
    is seeded from its first seed, and all others from *seed*. A part that saves its state keeps
    its generators.
    """
    seeded: set[int] = set()
    for part in find_parts(loader):
        if _has_epochs(part):
            part.set_epoch(epoch)
        if isinstance(part, Stateful):
            continue
        for generator in [value for value in _attributes(part) if _is_generator(value)]:
            if id(generator) not in seeded:
                is_first = _is_first(generator, loader)
                _seed(generator, seed if is_first else _derive_seed(generator, epoch, seed, len(seeded)))
                seeded.add(id(generator))


def check_repeatable(*loaders: Any) -> None:
    """Log a warning for each part of *loaders* that draws from an object whose state cannot be set."""
    for part in chain.from_iterable(map(find_parts, loaders)):
        for value in _attributes(part):
            is_position = isinstance(part, Sampler) and isinstance(value, Iterator)
            if is_position or isinstance(value, random.SystemRandom):
                log.warning(
                    "%s has a %s, which cannot be set to a position: a resumed run will not equal an "
                    "uninterrupted one. Create it when an epoch begins, in __iter__ or set_epoch",
                    type(part).__name__,
                    type(value).__name__,
                )


def find_parts(loader: Any) -> Iterator[Any]:
    """Yield *loader*, its datasets and its samplers, each once."""
    seen: set[int] = set()
    pending = [(loader, 0)]
    while pending:
        part, depth = pending.pop(0)
        if id(part) in seen or depth > MAX_DEPTH:
            continue
        seen.add(id(part))
        yield part
        pending.extend((value, depth + 1) for value in _attributes(part) if _is_part(value))


def _attributes(part: Any) -> Iterator[Any]:
    """Yield the attributes of *part*, and the entries of those that are short lists, tuples or dicts."""
    for value in list(attributes_of(part).values()):
        yield value
        if isinstance(value, list | tuple | Mapping) and len(value) <= MAX_ENTRIES:
            yield from value.values() if isinstance(value, Mapping) else value


def _is_part(value: Any) -> bool:
    """Return whether *value* is a loader, a dataset or a sampler, also one of a class of its own."""
    if isinstance(value, DataLoader | Dataset | Sampler):
        return True
    if isinstance(value, type | Tensor | nn.Module | np.ndarray | str | Mapping | list | tuple | Iterator):
        return False
    is_collection = isinstance(value, Sized) and (
        isinstance(value, Iterable) or hasattr(value, "__getitem__")
    )
    return hasattr(value, "__dict__") and (is_collection or _has_epochs(value))


def _has_epochs(part: Any) -> bool:
    return hasattr(part, "set_epoch")


def _is_generator(value: Any) -> bool:
    """Return whether *value* is a generator of its own, and not a global one or that of the system."""
    if not isinstance(value, GENERATORS) or isinstance(value, random.SystemRandom):
        return False
    return value not in (torch.default_generator, np.random.mtrand._rand, random._inst)  # noqa: SLF001


def _is_first(generator: Any, loader: Any) -> bool:
    """Return whether *generator* is that of *loader* or of its samplers, which have one stream."""
    owners = loader, *LoaderOptions.of(loader).samplers
    return any(LoaderOptions.of(owner).generator is generator for owner in owners)


def _derive_seed(generator: Any, epoch: int, seed: int, number: int) -> int:
    if not isinstance(generator, torch.Generator):
        return derive_seed(seed, number)
    return derive_seed(_first_seeds.setdefault(generator, generator.initial_seed()), epoch, number)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state  # every kind takes a seed
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed % 2**32)
    else:
        generator.seed(seed)
