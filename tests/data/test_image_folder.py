"""The source `image_folder`, as tensors and as an index of files."""

import hashlib
import json
import logging

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from stages import data
from stages.build_learner import build_learner
from stages.contracts.errors import DataError
from stages.data.sources import image_folder
from stages.fit import fit
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitPaths

COLORS = {"ant": 40, "bee": 120, "cow": 200}


def draw(folder, count=8, size=(6, 5), suffix="png"):
    """Write *count* images of noise for each class, and return the source."""
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = (color + rng.integers(-20, 20, (*size, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.{suffix}")
    return {"kind": "image_folder", "path": str(folder)}


def prepare(source, folder, **params):
    """Run load-data, and return the split files and dataset.json."""
    load_data(LoadDataConfig(source=source, **params), LoadDataPaths(folder))
    splits = {name: load_file(folder / f"{name}.safetensors") for name in ("train", "valid")}
    return splits, json.loads((folder / "dataset.json").read_text())


def test_images_in_folders_become_tensors_with_the_names_of_the_classes(tmp_path):
    source = draw(tmp_path / "raw")
    (tmp_path / "raw/ant/notes.txt").write_text("not an image")

    splits, info = prepare(source, tmp_path / "prepared", valid_fraction=0.25)

    inputs, targets = splits["train"]["inputs"], splits["train"]["targets"]
    assert (inputs.shape, inputs.dtype) == ((18, 3, 6, 5), np.uint8)
    assert [round(inputs[targets == number].mean(), -1) for number in range(3)] == list(COLORS.values())
    assert info["class_names"] == list(COLORS)
    assert info["counts"] == {"train": 18, "valid": 6}
    assert info["normalization"]["mean"] == inputs.mean(dtype=np.float64)
    assert info["normalization"]["std"] == pytest.approx(inputs.std(dtype=np.float64), rel=1e-14)
    assert "index" not in info
    assert "skipped" not in info


def test_labels_come_from_a_csv_file(tmp_path):
    source = draw(tmp_path / "raw", count=4)
    rows = [f"{name}/{number}.png,{10 - number}" for name in COLORS for number in range(4)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))

    arrays = image_folder.image_folder(source["path"], labels=str(tmp_path / "labels.csv"))

    assert arrays.facts["class_names"] == ("7", "8", "9", "10")
    assert arrays.targets.tolist() == [3, 2, 1, 0] * 3


def test_images_are_resized_and_converted(tmp_path):
    source = draw(tmp_path / "raw") | {"size": [3, 4], "mode": "gray"}
    Image.new("RGBA", (50, 70)).save(tmp_path / "raw/ant/large.png")

    splits, info = prepare(source, tmp_path / "prepared")

    assert info["input_shape"] == [1, 3, 4]
    assert splits["train"]["inputs"].shape[1:] == (1, 3, 4)


def test_an_index_has_the_names_sizes_and_hashes_of_the_files(tmp_path):
    source = draw(tmp_path / "raw")

    splits, info = prepare(source, tmp_path / "prepared", materialize="index")

    valid = splits["valid"]
    names = np.split(valid["names"], valid["name_ends"])[:-1]
    files = [tmp_path / "raw" / name.tobytes().decode() for name in names]
    assert [file.stat().st_size for file in files] == valid["sizes"].tolist()
    digests = [hashlib.sha256(file.read_bytes()).digest() for file in files]
    assert digests == [each.tobytes() for each in valid["hashes"]]
    assert info["index"] == {"root": source["path"], "mode": "rgb", "size": [6, 5], "resize": False}


def test_samples_of_an_index_are_those_of_the_tensors(tmp_path):
    source = draw(tmp_path / "raw")

    for kind in ("tensors", "index"):
        prepare(source, tmp_path / kind, materialize=kind)
    tensors, index = (data.read(tmp_path / kind) for kind in ("tensors", "index"))

    assert isinstance(index.train, data.ImageFileDataset)
    order = torch.randperm(len(index.train))
    assert torch.equal(index.train.__getitems__(order).inputs, tensors.train.inputs[order])
    assert torch.equal(index.valid.targets, tensors.valid.targets)
    assert torch.equal(index.valid[3][0], tensors.valid[3][0])
    assert index.info.normalization == tensors.info.normalization


@pytest.mark.parametrize("per", ["dataset", "channel"])
@pytest.mark.parametrize("kind", ["mean_std", "min_max", "none"])
def test_normalization_is_that_of_the_decoded_images(tmp_path, kind, per):
    config = data.NormalizationConfig(kind=kind, per=per)
    splits, info = prepare(draw(tmp_path / "raw"), tmp_path / "prepared", normalization=config)

    arrays = [data.Arrays(split["inputs"], split["targets"]) for split in splits.values()]
    expected = data.prepare(data.Splits(*arrays), config).info.normalization

    for name in ("mean", "std"):
        assert info["normalization"][name] == pytest.approx(getattr(expected, name), rel=1e-13)


def test_content_hash_of_an_index_changes_with_a_file(tmp_path):
    source = draw(tmp_path / "raw", suffix="bmp")
    _, before = prepare(source, tmp_path / "prepared", materialize="index")
    path = tmp_path / "raw/bee/3.bmp"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    _, after = prepare(source, tmp_path / "prepared", materialize="index")

    assert after["sha256"] != before["sha256"]


@pytest.mark.parametrize(("limit", "is_index"), [(3 * 8 * 3 * 6 * 5, False), (3 * 8 * 3 * 6 * 5 - 1, True)])
def test_auto_writes_an_index_above_a_size(tmp_path, monkeypatch, limit, is_index):
    monkeypatch.setattr(image_folder, "MAX_TENSOR_BYTES", limit)

    _, info = prepare(draw(tmp_path / "raw"), tmp_path / "prepared")

    assert ("index" in info) == is_index


def train(folder, name, workers):
    """Train for two epochs, and return the bytes of the model and of the optimizer."""
    artifacts, learner = folder / name, folder / name / "learner"
    prepared = folder / name.partition("-")[0]
    build_learner(
        BuildLearnerConfig(model={"kind": "mlp", "hidden_sizes": [4]}),
        BuildLearnerPaths(dataset=prepared / "dataset.json", learner=learner),
    )
    names = ("checkpoint", "train", "valid", "metrics", "plots", "runs")
    paths = {each: artifacts / each for each in names}
    paths |= {each: artifacts / "plots" / each for each in ("iterations", "confusion")}
    config = FitConfig(num_epochs=2, batch_size=7, num_workers=workers, num_threads=1, device="cpu")
    fit(config, FitPaths(artifacts=artifacts, learner=learner, data=prepared, **paths))
    return [(artifacts / f"checkpoint/{part}-2.mpk.gz").read_bytes() for part in ("model", "optim")]


def test_run_has_the_same_bytes_with_tensors_and_with_an_index(tmp_path):
    source = draw(tmp_path / "raw")
    for kind in ("tensors", "index"):
        prepare(source, tmp_path / kind, materialize=kind)

    expected = train(tmp_path, "tensors-0", 0)

    assert train(tmp_path, "index-0", 0) == expected
    assert train(tmp_path, "index-2", 2) == expected


def test_iteration_resumes_in_the_middle_of_an_epoch(tmp_path):
    prepare(draw(tmp_path / "raw"), tmp_path / "prepared", materialize="index")
    dataset = data.read(tmp_path / "prepared").train
    loader = data.DataLoaderBuilder(data.NormalizeBatcher()).batch_size(4).shuffle(1).build(dataset)
    loader.set_epoch(2)
    expected = [batch.inputs for batch in loader][3:]

    loader.set_position(3)

    assert torch.equal(torch.cat(expected), torch.cat([batch.inputs for batch in loader]))


def cut(folder):
    path = folder / "bee/3.png"
    path.write_bytes(path.read_bytes()[:-40])


def test_corrupt_files_can_be_skipped_with_a_count(tmp_path, caplog):
    source = draw(tmp_path / "raw") | {"corrupt": "skip"}
    cut(tmp_path / "raw")

    with caplog.at_level(logging.WARNING):
        splits, info = prepare(source, tmp_path / "tensors")
    _, index = prepare(source, tmp_path / "index", materialize="index")

    assert info["skipped"] == index["skipped"] == 1
    assert info["counts"] == index["counts"]
    assert sum(info["counts"].values()) == 23
    assert len(splits["train"]["inputs"]) == info["counts"]["train"]
    assert "bee/3.png cannot be decoded" in caplog.text


def test_image_that_became_corrupt_is_named_with_what_to_do(tmp_path):
    source = draw(tmp_path / "raw")
    arrays = image_folder.image_folder(source["path"])
    cut(tmp_path / "raw")

    with pytest.raises(DataError, match=r"bee/3.png cannot be decoded: .*\. Correct or remove the file$"):
        arrays.inputs[:]


REJECTED = {
    "a corrupt file": (cut, {}, "bee/3.png cannot be decoded: .*. Correct or remove the file, or set"),
    "a file that is not an image": (
        lambda folder: (folder / "cow/z.png").write_bytes(b"text"),
        {},
        "cow/z.png cannot be decoded: it is not an image of a known format. Correct or remove",
    ),
    "another size": (
        lambda folder: Image.new("RGB", (9, 9)).save(folder / "cow/z.png"),
        {},
        "cow/z.png has 9×9 pixels, but an earlier image has 6×5. Set load_data.source.size",
    ),
    "16 bits": (
        lambda folder: Image.fromarray(np.full((6, 5), 999, np.uint16)).save(folder / "cow/z.png"),
        {},
        "cow/z.png has more than 8 bits per channel, which would be cut off. Convert",
    ),
    "an empty class": (
        lambda folder: (folder / "dog").mkdir(),
        {},
        "dog has no images. Add images of this class",
    ),
    "a missing folder": (lambda folder: folder.rename(folder.with_name("x")), {}, "there is no folder"),
    "a missing file of labels": (lambda _: None, {"labels": "no.csv"}, "load_data.source.labels: no.csv"),
    "a class of corrupt files": (
        lambda folder: [path.write_bytes(b"") for path in (folder / "ant").iterdir()],
        {"corrupt": "skip"},
        "the class 'ant' has no intact image",
    ),
}


@pytest.mark.parametrize(("harm", "arguments", "words"), REJECTED.values(), ids=REJECTED)
def test_unusable_images_are_rejected_by_name(tmp_path, harm, arguments, words):
    source = draw(tmp_path / "raw") | arguments
    harm(tmp_path / "raw")

    with pytest.raises(DataError, match=words):
        prepare(source, tmp_path / "prepared")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file,class\na,b\n", "must have the columns path and label; found file, class"),
        ("path,label\nant/0.png,\n", "line 2: each row needs a path below the folder and a label"),
        ("path,label\n../0.png,x\n", "line 2: each row needs a path below"),
        ("path,label\nant/no.png,x\nant/0.png,y\n", "ant/no.png cannot be read: No such file"),
    ],
)
def test_unusable_labels_are_rejected(tmp_path, text, words):
    source = draw(tmp_path / "raw") | {"labels": str(tmp_path / "labels.csv")}
    (tmp_path / "labels.csv").write_text(text)

    with pytest.raises(DataError, match=words):
        prepare(source, tmp_path / "prepared")


@pytest.mark.parametrize("workers", [0, 2])
def test_missing_file_of_an_index_is_named_without_a_traceback(tmp_path, workers):
    prepare(draw(tmp_path / "raw"), tmp_path / "prepared", materialize="index")
    split = data.read(tmp_path / "prepared").train
    name = split.files.names[5]
    (tmp_path / "raw" / name).unlink()
    loader = data.DataLoaderBuilder(data.NormalizeBatcher()).batch_size(4).num_workers(workers).build(split)

    with pytest.raises(DataError) as caught:
        list(loader)

    assert str(caught.value) == f"{tmp_path / 'raw' / name} cannot be read: No such file or directory"


def test_changed_file_of_an_index_is_named(tmp_path):
    source = draw(tmp_path / "raw")
    prepare(source, tmp_path / "prepared", materialize="index")
    prepared = data.read(tmp_path / "prepared")
    cut(tmp_path / "raw")

    with pytest.raises(DataError, match="bee/3.png has .* bytes, but load-data read .*. Run load-data again"):
        [split[index] for split in (prepared.train, prepared.valid) for index in range(len(split))]


def test_an_index_needs_files(tmp_path):
    with pytest.raises(DataError, match="load_data.materialize: only the source 'image_folder' has files"):
        prepare({"kind": "digits"}, tmp_path, materialize="index")


@pytest.mark.parametrize("name", ["valid", "val", "validation"])
def test_folders_named_as_splits_are_the_splits(name, tmp_path):
    for split, count in {"train": 8, name: 4, "test": 2}.items():
        draw(tmp_path / "raw" / split, count)

    _, info = prepare({"kind": "image_folder", "path": str(tmp_path / "raw")}, tmp_path / "prepared")

    assert info["counts"] == {"train": 24, "valid": 12, "test": 6}
    assert info["class_names"] == list(COLORS)


def test_folders_named_as_splits_without_folders_in_them_are_classes(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "raw" / split).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "raw" / split / "0.png")

    arrays = image_folder.image_folder(str(tmp_path / "raw"))

    assert (arrays.splits, arrays.facts["class_names"]) == (None, ("test", "train"))


def test_splits_and_groups_come_from_the_file_of_labels(tmp_path):
    source = draw(tmp_path / "raw", count=4)
    (tmp_path / "raw/bee/3.png").write_bytes(b"")
    rows = [
        f"{name}/{number}.png,{name},{'test' if number == 0 else 'train'},{number}"
        for name in COLORS
        for number in range(4)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,split,group", *rows]))
    source |= {"labels": str(tmp_path / "labels.csv"), "corrupt": "skip"}

    prepared = image_folder.read_images(
        image_folder.image_folder(**{k: v for k, v in source.items() if k != "kind"}), "index"
    )

    assert prepared.splits.tolist() == [
        "test",
        *["train"] * 3,
        "test",
        *["train"] * 2,
        "test",
        *["train"] * 3,
    ]
    assert prepared.groups.tolist() == list("01230120123")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_images_are_turned_as_viewers_show_them(orientation, suffix, tmp_path):
    shown = np.arange(12, dtype=np.uint8).reshape(2, 2, 3).repeat(16, 0).repeat(24, 1) * 20
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # the operation that undoes each orientation
    stored = Image.fromarray(shown)
    if orientation > 1:
        stored = stored.transpose(Image.Transpose(turns[orientation]))
    exif = stored.getexif()
    exif[0x0112] = orientation
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        stored.save(tmp_path / name / f"1.{suffix}", exif=exif, quality=100, subsampling=0)

    inputs = image_folder.image_folder(str(tmp_path)).inputs

    assert inputs.shape == (2, 3, 32, 48)
    assert np.abs(inputs[:][0].transpose(1, 2, 0).astype(int) - shown).max() < (3 if suffix == "jpg" else 1)


def test_images_of_16_bits_in_color_are_refused(tmp_path):
    """Pillow converts them to 8 bits in silence; those in gray have a mode of their own."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.ppm").write_bytes(b"P6 2 1 65535\n" + bytes(12))

    with pytest.raises(DataError, match=r"1.ppm has more than 8 bits per channel, which would be cut off"):
        image_folder.image_folder(str(tmp_path))


def test_transparency_is_dropped(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.new("RGBA", (2, 1), (10, 20, 30, 0)).save(tmp_path / name / "1.png")

    assert image_folder.image_folder(str(tmp_path)).inputs[:][0, :, 0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("path,label\na.png,1,2\n", "line 2: the row has 3 fields, but the first line has 2"),
        ("path,label\na.png\n", "line 2: the row has 1 field"),
        ("path,path,label\na,b,1\n", "several columns with the name 'path'"),
    ],
)
def test_labels_with_other_fields_than_the_header_are_refused(rows, words, tmp_path):
    (tmp_path / "labels.csv").write_text(rows)

    with pytest.raises(DataError, match=words):
        image_folder.image_folder(str(tmp_path), labels=str(tmp_path / "labels.csv"))
