"""The source `huggingface`: datasets of the package ``datasets``, saved to a folder."""

import datasets
import numpy as np
import pytest
from PIL import Image

from stages import data
from stages.contracts.errors import DataError
from stages.data import load_source
from stages.data.config import HuggingFace
from stages.data.sources.hugging_face import huggingface
from stages.data.sources.texts import text
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data

TEXTS = ["a b", "c d e", "f"]


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def save(columns, features=None, path="saved"):
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(path)
    return path


def test_images_are_decoded_and_classes_have_their_names():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 5, 4, 3), np.uint8)
    labels = datasets.ClassLabel(names=["ant", "bee"])
    columns = {"image": [Image.fromarray(each) for each in pixels], "label": [1, 0, 1]}
    path = save(columns, datasets.Features({"image": datasets.Image(), "label": labels}))

    arrays = huggingface(path, inputs="image")
    resized = huggingface(path, inputs="image", size=[2, 3], mode="gray")

    np.testing.assert_array_equal(arrays.inputs, pixels.transpose(0, 3, 1, 2))
    assert (resized.inputs.shape, resized.inputs.dtype) == ((3, 1, 2, 3), np.uint8)
    assert arrays.targets.tolist() == [1, 0, 1]
    assert arrays.facts == {"class_names": ("ant", "bee")}


def test_texts_have_the_ids_of_the_source_text(tmp_path):
    path = save({"review": TEXTS, "stars": ["good", "bad", "good"]})
    (tmp_path / "texts.csv").write_text("text,label\n" + "".join(f"{each},x\n" for each in TEXTS))

    arrays = huggingface(path, inputs="review", targets="stars", tokenizer="words", max_length=2)

    expected = text("texts.csv", tokenizer="words", max_length=2)
    np.testing.assert_array_equal(arrays.inputs, expected.inputs)
    assert arrays.facts == expected.facts | {"class_names": ("bad", "good")}
    assert arrays.targets.tolist() == [1, 0, 1]


def test_columns_of_texts_share_a_vocabulary():
    path = save({"question": TEXTS, "answer": ["g", "a h", "g g g"], "label": [0, 1, 0]})

    arrays = huggingface(path, inputs=["question", "answer"], tokenizer="words", max_length=2)

    vocabulary = arrays.facts["tokenizer"]["model"]["vocab"]
    assert len(vocabulary) == arrays.facts["vocabulary_size"] == 2 + len("abcdefgh")
    assert arrays.inputs["question"][0].tolist() == [vocabulary["a"], vocabulary["b"]]
    assert arrays.inputs["answer"][1].tolist() == [vocabulary["a"], vocabulary["h"]]
    assert arrays.facts["truncated"] == 2


def test_splits_are_those_of_the_dataset(tmp_path):
    made = {
        name: datasets.Dataset.from_dict({"x": np.full((count, 2), 0.5), "y": np.arange(count) % 2})
        for name, count in {"test": 2, "train": 6, "validation": 4}.items()
    }
    datasets.DatasetDict(made).save_to_disk("saved")
    source = HuggingFace(kind="huggingface", path="saved", inputs="x", targets="y")

    load_data(LoadDataConfig(source=source), LoadDataPaths(tmp_path / "prepared"))

    arrays = load_source(source)
    assert arrays.inputs.shape == (12, 2)
    assert arrays.splits.tolist() == ["train"] * 6 + ["valid"] * 4 + ["test"] * 2
    assert {path.name for path in (tmp_path / "prepared").glob("*.safetensors")} == {
        f"{name}.safetensors" for name in ("train", "valid", "test")
    }


def test_numbers_are_regression_targets():
    arrays = huggingface(save({"x": [1, 2, 3], "y": [0.5, 1.5, 2.5]}), inputs="x", targets="y")

    assert arrays.inputs.tolist() == [[1], [2], [3]]
    assert arrays.targets.tolist() == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("columns", "arguments", "words"),
    [
        ({"text": TEXTS, "label": [0, 1, 0]}, {"inputs": "txt"}, "no column 'txt'. Did you mean 'text'"),
        ({"x": [[1], [2, 3]], "label": [0, 1]}, {"inputs": "x"}, "values of different shapes|has the type"),
        ({"x": [1, 2], "label": [[["a"]], [["b"]]]}, {"inputs": "x"}, "'label' has the type"),
        ({"x": ["a", None], "label": [0, 1]}, {"inputs": "x"}, "no value in row 1, counted from 0"),
    ],
)
def test_unusable_columns_are_rejected(columns, arguments, words):
    with pytest.raises(DataError, match=words):
        huggingface(save(columns), **arguments)


def test_unknown_splits_and_missing_folders_are_rejected():
    made = datasets.Dataset.from_dict({"x": [1], "label": [0]})
    datasets.DatasetDict({"train": made, "extra": made}).save_to_disk("saved")

    with pytest.raises(DataError, match="must be one for training and at most one"):
        huggingface("saved", inputs="x")
    with pytest.raises(DataError, match="'missing/data' is neither a folder that save_to_disk wrote nor"):
        huggingface("missing/data", inputs="x")


def test_split_without_a_column_is_reported():
    train, test = (datasets.Dataset.from_dict({"x": [1, 2], **label}) for label in ({"label": [0, 1]}, {}))
    datasets.DatasetDict({"train": train, "test": test}).save_to_disk("saved")

    with pytest.raises(DataError, match="saved, split test has no column 'label'"):
        huggingface("saved", inputs="x")


@pytest.mark.parametrize(
    ("splits", "chosen", "counts"),
    [
        ({"train": 4, "validation": 2, "test": 3}, ["train", "validation"], {"train": 4, "valid": 2}),
        ({"train": 4, "unsupervised": 5, "test": 3}, ["train", "test"], {"train": 4, "test": 3}),
        (
            {"train": 4, "validation_matched": 2, "validation_mismatched": 3, "test_matched": 1},
            ["test_matched", "validation_matched", "train"],
            {"train": 4, "valid": 2, "test": 1},
        ),
        ({"train": 4, "dev": 2}, None, None),
    ],
)
def test_splits_are_chosen_by_name(splits, chosen, counts):
    """Unlabelled tests (GLUE), several validations (MNLI) and further splits (IMDB) can be left out."""
    made = {name: datasets.Dataset.from_dict({"x": range(n), "label": [0] * n}) for name, n in splits.items()}
    datasets.DatasetDict(made).save_to_disk("saved")

    if chosen is None:
        with pytest.raises(
            DataError, match=r"source.splits: the splits to use of saved .*; found train, dev"
        ):
            huggingface("saved", inputs="x")
        chosen, counts = ["train", "dev"], {"train": 4, "valid": 2}
    arrays = huggingface("saved", inputs="x", splits=chosen)

    assert dict(zip(*np.unique(arrays.splits, return_counts=True), strict=True)) == counts
    first = arrays.inputs[arrays.splits == "valid"] if "valid" in counts else []
    assert [*np.ravel(first)] == [*range(counts.get("valid", 0))]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (["train", "validatoin"], "has no split 'validatoin'. Did you mean 'validation'"),
        (["validation"], "must be one for training"),
        (["train", "validation", "validation_2"], "found train, validation, validation_2"),
    ],
)
def test_unusable_choices_of_splits_are_rejected(chosen, words):
    made = datasets.Dataset.from_dict({"x": [1], "label": [0]})
    datasets.DatasetDict({"train": made, "validation": made, "validation_2": made}).save_to_disk("saved")

    with pytest.raises(DataError, match=words):
        huggingface("saved", inputs="x", splits=chosen)


def test_large_strings_are_texts():
    columns = datasets.Features(
        {"x": datasets.Value("large_string"), "label": datasets.Value("large_string")}
    )
    path = save({"x": TEXTS, "label": ["good", "bad", "good"]}, columns)

    assert huggingface(path, inputs="x").facts["class_names"] == ("bad", "good")


def test_masks_and_several_columns_are_leaves():
    pixels = np.random.default_rng(0).integers(0, 3, (4, 5, 6), np.uint8)
    columns = {
        "image": [Image.fromarray(each) for each in pixels],
        "review": ["a b", "c", "d", "e f"],
        "mask": [Image.fromarray(each) for each in pixels],
        "label": [1, 0, 1, 0],
    }
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "review": datasets.Value("string"),
            "mask": datasets.Image(),
            "label": datasets.ClassLabel(names=["ant", "bee"]),
        }
    )

    arrays = huggingface(
        save(columns, features), inputs=["image", "review"], targets=["mask", "label"], mode="gray"
    )

    leaves = data.prepare(data.Splits(arrays)).info.leaves
    assert {name: leaf.kind for name, leaf in leaves.items()} == {
        "inputs.image": "image",
        "inputs.review": "tokens",
        "targets.label": "classes",
        "targets.mask": "mask",
    }
    np.testing.assert_array_equal(arrays.targets["mask"], pixels)
    assert arrays.facts["class_names"] == {"mask": None, "label": ("ant", "bee")}


BOXES = [[[1.0, 2, 4, 6], [0, 0, 8, 10]], [], [[2, 2, 3, 4]]]
LABELS = [[1, 0], [], [1]]


def save_objects(form):
    """Save three images of 10 × 8 pixels with objects, stored as a dict of lists or a list of dicts."""
    pixels = np.random.default_rng(0).integers(0, 255, (3, 10, 8, 3), np.uint8)
    box = datasets.List(datasets.Value("float32"), length=4)
    label = datasets.ClassLabel(names=["ant", "bee"])
    if form == "lists":
        feature = {"bbox": datasets.List(box), "category": datasets.List(label)}
        objects = [{"bbox": rows, "category": row} for rows, row in zip(BOXES, LABELS, strict=True)]
    else:
        feature = datasets.List({"bbox": box, "category": label})
        objects = [
            [{"bbox": rows, "category": row} for rows, row in zip(*pair, strict=True)]
            for pair in zip(BOXES, LABELS, strict=True)
        ]
    columns = {"image": [Image.fromarray(image) for image in pixels], "objects": objects}
    return save(columns, datasets.Features({"image": datasets.Image(), "objects": feature}))


@pytest.mark.parametrize("form", ["lists", "dicts"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 2, 5, 8], [0, 0, 8, 10], [2, 2, 5, 6]]),
        ({"box_format": "xyxy"}, [[1, 2, 4, 6], [0, 0, 8, 10], [2, 2, 3, 4]]),
        ({"size": [5, 16]}, [[2, 1, 10, 4], [0, 0, 16, 5], [4, 1, 10, 3]]),
    ],
)
def test_objects_are_the_boxes_of_the_images(form, options, expected):
    arrays = huggingface(save_objects(form), inputs="image", targets="objects", **options)

    boxes, labels = arrays.targets["boxes"], arrays.targets["labels"]
    assert boxes.values.tolist() == expected
    assert labels.values.tolist() == [1, 0, 1]
    assert boxes.ends.tolist() == labels.ends.tolist() == [2, 2, 3]
    info = data.prepare(data.Splits(arrays)).info.model_copy(update=arrays.facts)
    assert (info.leaves["targets.boxes"].kind, info.class_names) == ("boxes", ("ant", "bee"))


def test_objects_without_a_class_are_rejected():
    path = save({"x": [1, 2], "objects": [{"bbox": [[0, 0, 1, 1]]}] * 2})

    with pytest.raises(
        DataError, match="objects with the fields bbox; one of category, label, labels must be"
    ):
        huggingface(path, inputs="x", targets="objects")


def test_samples_may_have_no_targets():
    arrays = huggingface(save({"x": [1, 2, 3]}), inputs="x", targets=None)

    assert data.prepare(data.Splits(arrays)).info.task == "unsupervised"


def test_dataset_with_false_positions_of_its_texts_is_refused(tmp_path):
    """Arrow reads at any position that the file states, which ends the process."""
    save({"text": ["aa"] * 400, "label": [0] * 400})
    [file] = tmp_path.glob("saved/*.arrow")
    offsets = np.arange(0, 802, 2, np.int32)
    assert offsets.tobytes() in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(offsets.tobytes(), (offsets * 2_000_000).tobytes()))

    with pytest.raises(DataError, match="the column 'text' is corrupt"):
        huggingface("saved", inputs="text")
