"""Division of samples into splits by group: all samples of a group are in the same split."""

from collections.abc import Mapping

import numpy as np

from stages.contracts.errors import DataError


def divide_groups(
    groups: np.ndarray, targets: np.ndarray, fractions: Mapping[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Return the indices of the samples of each split: one for each of *fractions*, and train, the rest.

    The groups are visited from the largest to the smallest, equal ones in an order drawn by *seed*. Each goes
    to the split that lacks most of its samples, class by class if *targets* are classes.

    Raises `DataError` if a split would be empty.
    """
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    members = np.split(codes.argsort(kind="stable"), sizes.cumsum()[:-1])
    generator = np.random.RandomState(seed)
    visited = generator.permutation(len(members))
    visited = visited[(-sizes[visited]).argsort(kind="stable")]
    shares = {"train": 1.0 - sum(fractions.values()), **fractions}
    chosen = _choose_splits([members[group] for group in visited], targets, list(shares.values()))
    parts = {}
    for place, name in enumerate(shares):
        members_of_split = [
            members[group] for group, split in zip(visited, chosen, strict=True) if split == place
        ]
        if not members_of_split:
            raise DataError(
                f"{len(members)} groups cannot be divided by load_data.test_fraction and valid_fraction: the "
                f"{name} split would be empty. Add groups, or change the fractions"
            )
        parts[name] = generator.permutation(np.sort(np.concatenate(members_of_split)))
    return parts


def check_length(labels: np.ndarray, targets: np.ndarray, name: str) -> None:
    """Raise `DataError` unless *labels*, the field *name* of `Arrays`, has a label for each target."""
    if labels.shape != targets.shape[:1]:
        raise DataError(
            f"{name} must have one label per sample, shape ({len(targets)},); found shape {labels.shape}. "
            "Return a label for each sample"
        )


def _choose_splits(members: list[np.ndarray], targets: np.ndarray, shares: list[float]) -> list[int]:
    """Return the split of each group, which reduces the squared lack of its classes most."""
    is_classes = targets.dtype.kind in "bui" and targets.ndim == 1
    classes = np.unique(targets, return_inverse=True)[1] if is_classes else np.zeros(len(targets), np.int64)
    totals = np.bincount(classes)
    missing = np.outer(shares, totals)
    chosen = []
    for rows in members:
        present, counts = np.unique(classes[rows], return_counts=True)
        gains = ((2 * missing[:, present] - counts) * counts / totals[present] ** 2).sum(axis=1)
        chosen.append(int(gains.argmax()))
        missing[chosen[-1], present] -= counts
    return chosen
