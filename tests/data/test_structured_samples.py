"""Samples that are tuples or dicts of leaves: their description, their files and their batches."""

import numpy as np
import pytest
import torch

from stages import data
from stages.contracts.config import Use
from stages.contracts.errors import DataError
from stages.data import Arrays, HorizontalFlip, Ragged, RandomCrop, TensorDataset, Views
from stages.data.config import NormalizationConfig
from stages.data.trees import flatten, list_leaves, unflatten

COUNT = 100
DRAWS = np.random.default_rng(0)
IMAGES = DRAWS.integers(0, 255, (COUNT, 3, 10, 12), dtype=np.uint8)
MASKS = DRAWS.integers(0, 3, (COUNT, 10, 12), dtype=np.uint8)
CLASSES = np.arange(COUNT) % 4
NUMBERS = DRAWS.normal(3, 2, (COUNT, 2)).astype(np.float32)
CORNERS = [DRAWS.integers(0, 6, (count % 4, 2)) for count in range(COUNT)]
BOXES = Ragged.of([np.hstack((corner, corner + 4)).astype(np.float32) for corner in CORNERS], (4,))
LABELS = Ragged.of([np.arange(len(corner)) for corner in CORNERS])
CASES = {
    "mask": Arrays(IMAGES, MASKS),
    "no targets": Arrays(IMAGES),
    "tuple": Arrays((IMAGES, NUMBERS), CLASSES),
    "dict": Arrays({"image": IMAGES, "more": {"numbers": NUMBERS}}, {"class": CLASSES, "mask": MASKS}),
    "boxes": Arrays(IMAGES, {"boxes": BOXES, "labels": LABELS}),
    "tokens": Arrays({"words": CLASSES[:, None].repeat(5, 1)}, CLASSES, kinds={"inputs.words": "tokens"}),
}


def prepare(arrays, **normalization):
    return data.prepare(data.split(arrays, 0.2, 1), NormalizationConfig(**normalization))


def load(prepared, augmentations=(), workers=0, batch_size=8, views=1, **arguments):
    batcher = data.build_batcher(Use(kind="normalize", **arguments), prepared.info.scaling)
    builder = data.DataLoaderBuilder(batcher).batch_size(batch_size).shuffle(3).num_workers(workers)
    return builder.augment(augmentations).views(views).build(prepared.train)


def leaves_of(batch):
    """Return the tensors of a batch by name; ragged leaves are joined."""
    leaves = flatten(batch.inputs, "inputs") | flatten(batch.targets, "targets")
    return {name: torch.cat(leaf) if isinstance(leaf, list) else leaf for name, leaf in leaves.items()}


def assert_equal_batches(first, second):
    for one, other in zip(first, second, strict=True):
        ours, theirs = leaves_of(one), leaves_of(other)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("arrays", CASES.values(), ids=CASES)
def test_files_have_the_samples_and_the_description_that_were_written(arrays, tmp_path):
    prepared = prepare(arrays)

    data.write(tmp_path, prepared)
    stored = data.read(tmp_path)

    assert stored.info == prepared.info.model_copy(update={"sha256": stored.info.sha256})
    assert_equal_batches(load(stored), load(prepared))


def test_description_names_the_kind_shape_and_type_of_each_leaf(tmp_path):
    data.write(tmp_path, prepare(CASES["dict"]))

    info = data.read_info(tmp_path / "dataset.json")

    leaves = {name: (leaf.kind, leaf.shape, leaf.dtype) for name, leaf in info.leaves.items()}
    assert leaves == {
        "inputs.image": ("image", (3, 10, 12), "uint8"),
        "inputs.more.numbers": ("number", (2,), "float32"),
        "targets.class": ("classes", (), "int64"),
        "targets.mask": ("mask", (10, 12), "uint8"),
    }
    assert info.input_shape == {"image": (3, 10, 12), "more.numbers": (2,)}
    assert info.num_outputs == {"class": 4, "mask": 3}


def test_two_arrays_have_no_description_of_leaves(tmp_path):
    data.write(tmp_path, prepare(Arrays(IMAGES, CLASSES)))

    assert "leaves" not in (tmp_path / "dataset.json").read_text()


def test_each_input_has_its_own_normalization_and_tokens_have_none():
    prepared = prepare(Arrays({"a": NUMBERS, "b": IMAGES, "ids": CLASSES}, kinds={"inputs.ids": "tokens"}))

    batch = next(iter(load(prepared, batch_size=80)))

    assert all(abs(batch.inputs[name].mean()) < 1e-5 for name in ("a", "b"))
    assert torch.equal(batch.inputs["ids"].sort().values, prepared.train.inputs["ids"].sort().values)
    assert batch.inputs["ids"].dtype == torch.int64


@pytest.mark.parametrize("targets", [CLASSES, {"class": CLASSES, "number": NUMBERS}, None])
def test_ids_of_a_source_with_a_vocabulary_are_not_normalized(targets):
    ids = CLASSES[:, None].repeat(3, 1)

    info = prepare(Arrays(ids, targets)).info.model_copy(update={"vocabulary_size": 4})

    batch = data.build_batcher(Use(kind="normalize"), info.scaling).batch(data.Samples(torch.tensor(ids)))
    assert batch.inputs.tolist() == ids.tolist()


@pytest.mark.parametrize("name", ["mask", "dict", "boxes"])
def test_workers_and_batch_size_do_not_change_augmented_samples(name):
    prepared = prepare(CASES[name])
    augmentations = [RandomCrop(padding=3), HorizontalFlip()]

    alone = load(prepared, augmentations, batch_size=1)
    together = load(prepared, augmentations, workers=2)

    sums = [sum(leaf[0].double().sum() for leaf in leaves_of(batch).values() if len(leaf)) for batch in alone]
    assert len(sums) == 8 * len(together)
    assert_equal_batches(together, load(prepared, augmentations))
    images = torch.cat([list_leaves(batch.inputs)[0] for batch in alone])
    assert torch.equal(images, torch.cat([list_leaves(batch.inputs)[0] for batch in together]))


def test_views_are_augmented_apart_and_normalized_alike():
    prepared = prepare(CASES["no targets"])

    batch = next(iter(load(prepared, [RandomCrop(padding=3)], views=2)))

    assert isinstance(batch.inputs, Views)
    assert len(batch.inputs) == 2
    assert not torch.equal(*batch.inputs)
    assert torch.equal(batch.inputs[0], next(iter(load(prepared, [RandomCrop(padding=3)]))).inputs)


def test_ragged_rows_are_listed_or_padded():
    prepared = prepare(CASES["boxes"])

    listed, padded = (next(iter(load(prepared, ragged=ragged))).targets for ragged in ("list", "pad"))

    for number, rows in enumerate(listed["boxes"]):
        assert torch.equal(padded["boxes"][number, : len(rows)], rows)
        assert padded["labels"][number, len(rows) :].eq(-100).all()


def test_shares_of_padded_rows_are_not_loaded_apart():
    prepared = prepare(CASES["boxes"])

    assert load(prepared).loads_shares
    assert not load(prepared, ragged="pad").loads_shares


def test_transform_of_the_whole_sample_changes_targets_too():
    def empty(sample):
        image, targets = sample
        return image, {name: rows[:1] for name, rows in targets.items()}

    empty.whole_sample = True
    batch = next(iter(load(prepare(CASES["boxes"]), [HorizontalFlip(), empty])))

    assert max(len(rows) for rows in batch.targets["boxes"]) == 1


MISTAKES = {
    "lengths": (Arrays({"a": IMAGES, "b": NUMBERS[:5]}), "inputs.a and the train split: inputs.b must have"),
    "name": (Arrays({"a.b": IMAGES}), "the name of a leaf may have no '.' or ':'; found 'a.b'"),
    "kind": (Arrays(IMAGES, kinds={"input": "image"}), "kinds has 'input', but the leaves are inputs"),
    "mask": (Arrays(IMAGES, MASKS[:, :4], kinds={"targets": "mask"}), "height and width of the images"),
    "boxes": (Arrays(IMAGES, LABELS, kinds={"targets": "boxes"}), r"boxes must be floats \(n, 4\)"),
    "classes": (Arrays(IMAGES, {"mask": MASKS.astype(int) - 7}), "class targets must be non-negative"),
}


@pytest.mark.parametrize(("arrays", "message"), MISTAKES.values(), ids=MISTAKES)
def test_error_names_the_leaf(arrays, message):
    with pytest.raises(DataError, match=message):
        data.prepare(data.Splits(arrays))


def test_splits_with_other_leaves_are_an_error():
    with pytest.raises(DataError, match="must have the same leaves"):
        data.prepare(data.Splits(Arrays(IMAGES, CLASSES), Arrays(IMAGES)))


def test_names_of_leaves_give_the_tree_back():
    tree = {"a": (1, 2), "b": {"c": 3}}

    assert unflatten(flatten(tree, "inputs"), "inputs") == tree


def test_leaves_of_different_lengths_are_no_dataset():
    with pytest.raises(ValueError, match="same length; found 2 and 3"):
        TensorDataset({"a": torch.zeros(2), "b": torch.zeros(3)})
