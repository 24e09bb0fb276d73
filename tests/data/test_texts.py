"""The source `text`: texts as padded ids of tokens."""

import csv
import json

import numpy as np
import pytest

from stages.contracts.errors import DataError
from stages.data import load_source
from stages.data.config import TextFiles
from stages.data.sources.texts import text

SAMPLES = [("ab", "good"), ("the cat sat on the mat", "bad"), ("äb the", "good")]


def write(folder, form):
    """Write `SAMPLES` in one form, and return the path."""
    if form == "folder":
        for number, (content, label) in enumerate(SAMPLES):
            (folder / "texts" / label).mkdir(parents=True, exist_ok=True)
            (folder / "texts" / label / f"{number}.txt").write_text(content)
        return folder / "texts"
    path = folder / f"texts.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps({"text": t, "label": c}) + "\n" for t, c in SAMPLES))
    else:
        mark = "," if form == "csv" else "\t"
        path.write_text(f"text{mark}label\n" + "".join(f"{t}{mark}{c}\n" for t, c in SAMPLES))
    return path


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_files_have_the_same_samples(form, tmp_path):
    arrays = text(str(write(tmp_path, form)))

    assert arrays.targets.tolist() == [1, 0, 1]
    assert arrays.facts["class_names"] == ("bad", "good")
    assert arrays.inputs[0].tolist() == [98, 99] + [0] * 20
    assert bytes((arrays.inputs[2, :7] - 1).astype(np.uint8)).decode() == "äb the"


def test_folder_has_a_class_for_each_folder(tmp_path):
    arrays = text(str(write(tmp_path, "folder")))

    assert arrays.targets.tolist() == [0, 1, 1]
    assert arrays.facts["class_names"] == ("bad", "good")


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_trained_vocabulary_is_the_same_each_time_and_can_be_loaded_from_its_file(tokenizer, tmp_path):
    pytest.importorskip("tokenizers")
    path = str(write(tmp_path, "csv"))

    first, second = (text(path, tokenizer=tokenizer, vocabulary_size=30) for _ in range(2))
    (tmp_path / "tokenizer.json").write_text(json.dumps(first.facts["tokenizer"]))
    loaded = text(path, tokenizer=str(tmp_path / "tokenizer.json"))

    assert first.facts == second.facts
    assert np.array_equal(first.inputs, loaded.inputs)
    assert np.array_equal(first.inputs, second.inputs)


def test_words_are_lower_case_and_rare_ones_unknown(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "texts.csv").write_text("text,label\nThe the a,0\nthe zebra,1\n")

    arrays = text(str(tmp_path / "texts.csv"), tokenizer="words", vocabulary_size=4)

    vocabulary = arrays.facts["tokenizer"]["model"]["vocab"]
    assert (len(vocabulary), vocabulary["[PAD]"], vocabulary["[UNK]"]) == (4, 0, 1)
    assert arrays.inputs[0].tolist()[:2] == [vocabulary["the"]] * 2
    assert 1 in arrays.inputs, "one of the two rare words is unknown"
    assert "class_names" not in arrays.facts, "integers are classes themselves"


def test_long_texts_are_cut_and_counted(tmp_path):
    arrays = text(str(write(tmp_path, "csv")), max_length=5)

    assert arrays.inputs.shape == (3, 5)
    assert arrays.facts["truncated"] == 2


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("text,label\n", "a.csv", "has no texts"),
        ("txt,label\na,1\n", "a.csv", "line 2: the sample has no 'text'. Did you mean 'txt'"),
        ('{"text": "a"', "a.jsonl", "line 1: not JSON"),
        ("[" * 100_000, "a.jsonl", "line 1: not JSON"),
        ("text,label\n,1\n", "a.csv", "text 0, counted from 0, has no tokens"),
        ("text,label\na,1\nb,\n", "a.csv", "line 3: 'label' must be text or an integer; found ''"),
        ("text,label\na,1\nb\n", "a.csv", "line 3: the row has 1 field, but the first line has 2"),
        ("text,label\na,x\nb, c,y\n", "a.csv", "line 3: the row has 3 fields, but the first line has 2"),
        ('text,label\n"a\nb",x\nb, c,y\n', "a.csv", "line 4: the row has 3 fields"),
        ("text,label,label\na,x,y\n", "a.csv", "several columns with the name 'label'. Rename them"),
        ('{"text": "a", "label": NaN}', "a.jsonl", "line 1: 'label' must be text or an integer; found nan"),
        ('{"text": ["a"], "label": 1}', "a.jsonl", "line 1: 'text' must be text or an integer"),
        ("a", "a.doc", "must be a folder, or end in .csv, .tsv or .jsonl"),
    ],
)
def test_wrong_file_is_refused_with_its_place(content, name, message, tmp_path):
    (tmp_path / name).write_text(content)

    with pytest.raises(DataError, match=message):
        text(str(tmp_path / name))


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no-file\.csv cannot be read"):
        text(str(tmp_path / "no-file.csv"))
    with pytest.raises(DataError, match="Use bytes, words, bpe, or the path"):
        text(str(write(tmp_path, "csv")), tokenizer="byts")


def test_source_is_configured_in_params(tmp_path):
    arrays = load_source(TextFiles(kind="text", path=str(write(tmp_path, "csv")), max_length=4))

    assert arrays.inputs.shape == (3, 4)


def test_splits_and_groups_come_from_columns_or_files(tmp_path):
    rows = ["text,label,part,author", "a b,x,train,1", "b c,y,train,2", "c d,x,test,1", "d e,y,valid,2"]
    for name, chosen in {"all": rows[1:], "train": rows[1:3], "valid": rows[4:], "test": rows[3:4]}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([rows[0], *chosen]))

    by_column = text(str(tmp_path / "all.csv"), split="part", group="author")
    by_file = text(
        str(tmp_path / "train.csv"),
        valid_path=str(tmp_path / "valid.csv"),
        test_path=str(tmp_path / "test.csv"),
    )

    assert by_column.splits.tolist() == ["train", "train", "test", "valid"]
    assert by_column.groups.tolist() == ["1", "2", "1", "2"]
    assert by_file.splits.tolist() == ["train", "train", "valid", "test"]
    assert sorted(map(bytes, by_file.inputs)) == sorted(map(bytes, by_column.inputs))


def test_folder_of_texts_has_no_column_for_a_split(tmp_path):
    with pytest.raises(DataError, match="is a folder and has no columns. Remove the key"):
        text(str(write(tmp_path, "folder")), split="part")


@pytest.mark.parametrize("form", ["csv", "jsonl", "folder"])
def test_byte_order_mark_is_not_a_character(form, tmp_path):
    path = write(tmp_path, form)
    for file in [path] if path.is_file() else path.rglob("*.txt"):
        file.write_text(file.read_text(), encoding="utf-8-sig")

    arrays = text(str(path))

    assert arrays.facts["class_names"] == ("bad", "good")
    assert arrays.inputs.max() - 1 == "ä".encode()[0]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "texts/pos/1.txt"])
def test_text_that_is_not_utf8_is_refused_with_its_file(name, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes('text,label\nschön,1\n{"'.encode("latin-1"))

    with pytest.raises(
        DataError, match=rf"{name} cannot be read: byte 0xf6 at position 14 is not UTF-8. Convert"
    ):
        text(str(tmp_path / name.split("/")[0]))


def test_labels_with_leading_zeros_are_classes_of_their_own(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,01\nb,1\n")

    assert text(str(tmp_path / "a.csv")).facts["class_names"] == ("01", "1")


def test_folders_are_read_as_those_of_images(tmp_path):
    """Folders in those of the classes, names in capitals, hidden files, and folders of splits."""
    for name in (
        "train/pos/1.TXT",
        "train/neg/a/2.txt",
        "train/neg/.3.txt",
        "test/pos/4.txt",
        "test/neg/5.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name[-5])

    arrays = text(str(tmp_path))

    assert (arrays.inputs.ravel() - 1).tolist() == [*b"5421"]
    assert arrays.splits.tolist() == ["test", "test", "train", "train"]
    assert arrays.facts["class_names"] == ("neg", "pos")


def test_class_without_texts_is_refused(tmp_path):
    for name in ("pos/1.txt", "neg/1.doc"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("a")

    with pytest.raises(
        DataError, match=r"neg has no texts. Add texts of this class, whose names end in .txt"
    ):
        text(str(tmp_path))


def test_long_texts_are_read_from_a_csv_file(tmp_path):
    """The module csv refuses more than 131,072 characters by default."""
    (tmp_path / "a.csv").write_text(f"text,label\n{'ab' * 100_000},1\nb,0\n")

    assert text(str(tmp_path / "a.csv")).facts["truncated"] == 1
    assert csv.field_size_limit() == 131_072
