"""The source `table`: CSV, Parquet and Arrow files, read in batches of rows."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, ipc, parquet
from pydantic import ValidationError
from safetensors.numpy import load_file

from stages import data
from stages.contracts.errors import DataError
from stages.data import load_source
from stages.data.sources import table_files, tables
from stages.data.sources.tables import table
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data


def trees(rows=300):
    """Return a table of numbers, flags, categories and text classes."""
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "height": rng.normal(10, 3, rows),
            "age": rng.integers(1, 90, rows),
            "is_old": rng.integers(0, 2, rows).astype(bool),
            "soil": rng.choice(["clay", "sand", "loam"], rows),
            "kind": np.array(["oak", "ash", "elm"])[np.arange(rows) % 3],
        }
    )


def write_ipc(content, path):
    with ipc.new_file(path, content.schema) as file:
        file.write_table(content, max_chunksize=64)


WRITERS = {
    "trees.csv": csv.write_csv,
    "trees.parquet": lambda content, path: parquet.write_table(content, path, row_group_size=100),
    "trees.feather": feather.write_feather,
    "trees.arrow": write_ipc,
}


def prepare(source, folder, **params):
    load_data(LoadDataConfig(source={"kind": "table"} | source, **params), LoadDataPaths(folder))
    splits = {name: load_file(folder / f"{name}.safetensors") for name in ("train", "valid")}
    return splits, json.loads((folder / "dataset.json").read_text())


@pytest.mark.parametrize("name", WRITERS)
def test_columns_become_features_and_classes(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 7 * 4 * 20)
    content = trees()
    WRITERS[name](content, tmp_path / name)
    source = {"path": str(tmp_path / name), "target": "kind", "categorical": ["soil"]}

    splits, info = prepare(source, tmp_path / "prepared")

    soil = np.array(content["soil"].to_pylist())
    columns = [np.array(content[each].to_pylist(), np.float32) for each in ("height", "age", "is_old")]
    expected = np.stack([*columns, *(soil == each for each in ("clay", "loam", "sand"))], 1)
    rows = {tuple(row): index for index, row in enumerate(expected.astype(np.float32).tolist())}
    found = [rows[tuple(row)] for row in splits["train"]["inputs"].tolist()]
    assert found == sorted(found)
    assert splits["train"]["targets"].tolist() == [[2, 0, 1][index % 3] for index in found]
    assert info["class_names"] == ["ash", "elm", "oak"]
    assert info["feature_names"] == ["height", "age", "is_old", "soil=clay", "soil=loam", "soil=sand"]
    assert info["categories"] == {"soil": ["clay", "loam", "sand"]}
    assert info["counts"] == {"train": 240, "valid": 60}


def test_table_of_indicators_is_read_although_it_expands_much(tmp_path):
    """Parquet stores a column of few ones in about a hundredth of its numbers."""
    path, columns = tmp_path / "t.parquet", {f"c{number}": np.zeros(90_000) for number in range(100)}
    parquet.write_table(pa.table(columns), path)

    batches = table_files.TableFile(path, "path", table_files.CsvFormat()).batches([*columns], 10_000)

    assert sum(batch.num_rows for batch in batches) == 90_000
    assert path.stat().st_size * 500 < 90_000 * 100 * 8


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_batch_of_parquet_has_no_texts_of_other_batches(is_dictionary, tmp_path):
    """Otherwise each batch would check the texts of all before it: a square of the rows for identifiers."""
    names = [None, *(f"patient {number}" for number in range(999))]
    parquet.write_table(pa.table({"id": names}), tmp_path / "t.parquet", use_dictionary=is_dictionary)
    file = table_files.TableFile(tmp_path / "t.parquet", "path", table_files.CsvFormat())

    columns = [batch.column(0) for batch in file.batches(["id"], 100)]

    assert sum(len(column.dictionary) for column in columns) == 999
    assert [text for column in columns for text in column.to_pylist()] == names


def test_prepared_data_is_that_of_the_same_arrays(tmp_path, monkeypatch):
    """The files differ from those of an archive only in the order of the samples."""
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1000)
    content = trees().select(["height", "age"]).append_column("y", pa.array(np.arange(300) % 3))
    parquet.write_table(content, tmp_path / "t.parquet", row_group_size=70)
    inputs = np.stack([content[name].to_numpy() for name in ("height", "age")], 1).astype(np.float32)
    for name, array in (("x", inputs), ("y", content["y"].to_numpy())):
        np.save(tmp_path / f"{name}.npy", array)
    npy = {"kind": "npy", "inputs": str(tmp_path / "x.npy"), "targets": str(tmp_path / "y.npy")}

    _, info = prepare({"path": str(tmp_path / "t.parquet"), "target": "y"}, tmp_path / "table")
    load_data(LoadDataConfig(source=npy), LoadDataPaths(tmp_path / "npy"))

    assert info.pop("feature_names") == ["height", "age"]
    assert info == json.loads((tmp_path / "npy/dataset.json").read_text())


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("arguments", "inputs", "targets", "skipped"),
    [
        ({"missing": "drop"}, [[1, 0], [5, 1]], [1, 0], 2),
        ({"missing": "mean"}, [[1, 0], [3, 2], [5, 1]], [1, 0, 0], None),
        ({"missing": "constant", "fill": -1}, [[1, 0], [-1, 2], [5, 1]], [1, 0, 0], None),
    ],
)
def test_missing_values_follow_the_rule(tmp_path, suffix, arguments, inputs, targets, skipped):
    content = pa.table({"x": [1.0, None, 5.0, 7.0], "c": ["a", None, "b", "b"], "y": ["t", "s", "s", None]})
    content = content if arguments["missing"] == "drop" else content.slice(0, 3)
    write = csv.write_csv if suffix == "csv" else parquet.write_table
    write(content, tmp_path / f"t.{suffix}")

    arrays = table(str(tmp_path / f"t.{suffix}"), "y", categorical=["c"], encoding="codes", **arguments)

    assert arrays.inputs[:].tolist() == inputs
    assert arrays.targets.tolist() == targets
    assert arrays.facts.get("skipped") == skipped


def test_integers_are_numbers_for_regression(tmp_path):
    content = trees().select(["height", "age"])
    csv.write_csv(content, tmp_path / "t.csv")

    _, info = prepare(
        {"path": str(tmp_path / "t.csv"), "target": "age", "task": "regression"}, tmp_path / "prepared"
    )

    assert (info["task"], info["num_classes"]) == ("regression", None)


def test_features_are_selected_by_patterns(tmp_path):
    csv.write_csv(pa.table({"x_1": [1], "z": [2], "x_2": [3], "y": [0]}), tmp_path / "t.csv")

    assert table(str(tmp_path / "t.csv"), "y", features=["x_*"]).facts["feature_names"] == ("x_1", "x_2")


def test_rows_are_read_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 40)
    csv.write_csv(pa.table({"x": np.arange(50), "y": np.arange(50) % 2}), tmp_path / "t.csv")
    arrays = table(str(tmp_path / "t.csv"), "y")

    assert arrays.inputs[np.array([9, 0, 49, 9])][:, 0].tolist() == [9, 0, 49, 9]
    assert data.prepare(data.split(arrays, 0.2, 42)).info.counts == {"train": 40, "valid": 10}


MEASURE = """
import sys
from pathlib import Path
from stages.load_data import LoadDataConfig, LoadDataPaths, load_data
source = {"kind": "table", "path": sys.argv[1], "target": "y"}
load_data(LoadDataConfig(source=source, valid_fraction=0.01), LoadDataPaths(Path(sys.argv[2])))
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_of_load_data_does_not_grow_with_the_table(tmp_path):
    peaks = []
    for count in (1000, 700_000):
        columns = {f"x{number}": np.arange(count, dtype=np.float32) % 97 for number in range(40)}
        path = tmp_path / "t.parquet"
        parquet.write_table(pa.table(columns | {"y": np.arange(count) % 2}), path)
        command = [sys.executable, "-c", MEASURE, path, tmp_path / "prepared"]
        peaks.append(int(subprocess.run(command, capture_output=True, check=True).stdout) << 10)

    assert peaks[1] - peaks[0] <= 75 << 20  # of 112 MB; 17 MB are targets and indices


TEXT = "height,soil,kind\n1.5,clay,oak\n2.5,,ash\n"
REJECTED = {
    "missing file": (None, {}, "load_data.source.path: there is no file"),
    "unknown ending": (TEXT, {"path": "t.xlsx"}, "'t.xlsx' must end in one of .csv, .tsv, .parquet"),
    "missing target": (
        TEXT,
        {"target": "kinds"},
        "has no column 'kinds'. Did you mean 'kind'\\? Columns: height",
    ),
    "missing feature": (TEXT, {"features": ["heigth"]}, "matches 'heigth'. Did you mean 'height'"),
    "text as a number": (TEXT, {}, "column 'soil' has the type string, which is not a number. Add it to"),
    "missing value": (TEXT, {"categorical": ["soil"]}, "column 'soil' has a missing value in row 1, counted"),
    "missing class": ("x,y\n1,a\n2,\n", {"target": "y"}, "column 'y' has a missing target in row 1"),
    "infinity": (
        "x,y\n1,a\n1e40,b\n",
        {"target": "y"},
        "column 'x' must have finite float32 numbers; found .* 1",
    ),
    "float classes": (
        "x,y\n1,0.5\n",
        {"target": "y", "task": "classification"},
        "load_data.source.task: column 'y' .* has the type double, but classes are integers or text",
    ),
    "no feature": ("y\n1\n", {"target": "y"}, "has no column for a feature"),
    "empty file": ("", {}, "t.csv is not a readable table"),
}


@pytest.mark.parametrize(("text", "arguments", "words"), REJECTED.values(), ids=REJECTED)
def test_unusable_tables_are_rejected(tmp_path, text, arguments, words):
    if text is not None:
        (tmp_path / "t.csv").write_text(text)

    with pytest.raises(DataError, match=words):
        table(**({"path": str(tmp_path / "t.csv"), "target": "kind"} | arguments))


def test_value_that_is_not_a_number_is_rejected(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n" * 10 + "one,b\n")

    with pytest.raises(DataError, match="column 'x' has the type string"):
        table(str(tmp_path / "t.csv"), "y")


def test_corrupt_file_is_rejected_by_name(tmp_path):
    parquet.write_table(trees(), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(content[:-10])

    with pytest.raises(DataError, match="t.parquet is not a readable table"):
        table(str(tmp_path / "t.parquet"), "kind")


def test_folder_of_files_is_one_table(tmp_path):
    content = trees()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/_SUCCESS").touch()
    for number in range(3):
        parquet.write_table(content.slice(100 * number, 100), tmp_path / f"parts/part-{number}.parquet")
    parquet.write_table(content, tmp_path / "whole.parquet")

    parts = table(str(tmp_path / "parts"), "kind", categorical=["soil"])
    whole = table(str(tmp_path / "whole.parquet"), "kind", categorical=["soil"])

    np.testing.assert_array_equal(parts.inputs[:], whole.inputs[:])
    assert (parts.targets.tolist(), parts.facts) == (whole.targets.tolist(), whole.facts)


def test_splits_come_from_files_or_from_a_column(tmp_path):
    content = trees()
    names = np.array(["train", "valid", "train", "test", "train"])[np.arange(300) % 5]
    csv.write_csv(content.append_column("part", pa.array(names)), tmp_path / "all.csv")
    for name in ("train", "valid", "test"):
        csv.write_csv(content.filter(pa.array(names == name)), tmp_path / f"{name}.csv")
    columns = {"target": "kind", "categorical": ["soil"]}
    files = {"path": "train.csv", "valid_path": "valid.csv", "test_path": "test.csv"}

    by_file = prepare(columns | {key: str(tmp_path / name) for key, name in files.items()}, tmp_path / "1")
    by_column = prepare(columns | {"path": str(tmp_path / "all.csv"), "split": "part"}, tmp_path / "2")

    assert by_file[1] == by_column[1]
    assert by_file[1]["counts"] == {"train": 180, "valid": 60, "test": 60}
    assert "part" not in by_column[1]["feature_names"]


def test_rows_of_a_group_are_in_one_split(tmp_path):
    content = trees().append_column("forest", pa.array(np.arange(300) // 10))
    csv.write_csv(content, tmp_path / "trees.csv")

    arrays = table(str(tmp_path / "trees.csv"), "kind", features=["age"], group="forest")
    splits = data.split(arrays, 0.2, 0)

    assert arrays.groups.tolist() == [str(row // 10) for row in range(300)]
    assert len(splits.valid) == 60


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"split": "par"}, "source.split: .* has no column 'par'. Did you mean 'part'"),
        ({"group": "part", "features": ["part"]}, "no column of .* except the target matches 'part'"),
        ({"split": "part"}, "found 'dev'"),
        ({"group": "gap"}, "column 'gap', the group of each row, has a missing value in row 1"),
        ({"valid_path": "other.csv"}, "other.csv has the columns a, but .*has a, b, part, gap"),
        ({"valid_path": "other.csv", "split": "part"}, "set either split, or valid_path and test_path"),
        ({"test_path": "missing.csv"}, "load_data.source.test_path: there is no file"),
        ({"valid_path": "empty"}, "load_data.source.valid_path: the folder 'empty' has no file"),
    ],
)
def test_unusable_splits_of_a_table_are_rejected(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b,part,gap\n1,0,train,x\n2,1,dev,\n")
    (tmp_path / "other.csv").write_text("a\n1\n")
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match=words):
        data.split_columns(table("rows.csv", "b", **({"features": ["a"]} | arguments)))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("index", ["key", None])
def test_index_of_pandas_is_a_feature_only_if_it_is_named(suffix, index, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0], "c": list("aba")}, index=[5, 3, 4]).rename_axis(index)
    path = str(tmp_path / f"t.{suffix}")
    getattr(frame, f"to_{suffix}")(path)

    found = table(path, "c").facts["feature_names"]

    assert found == (("key", "x") if suffix == "csv" and index else ("x",))
    if suffix == "parquet":
        name = index or "__index_level_0__"
        assert table(path, "c", features=["x", name]).facts["feature_names"] == ("x", name)


def test_line_breaks_in_quotes_are_read_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "CSV_BLOCK_BYTES", 1000)
    rows = "".join(f'{row},{"ab"[row % 2]},"again:\n{row},a,see\n"\n' for row in range(500))
    (tmp_path / "t.csv").write_text("x,c,note\n" + rows)

    arrays = table(str(tmp_path / "t.csv"), "c", features=["x"])

    assert arrays.inputs[:].ravel().tolist() == [*range(500)]
    assert arrays.targets.tolist() == [0, 1] * 250


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_text_of_every_type_of_arrow_is_read(kind, suffix, tmp_path):
    """Pandas 3, polars and datasets write large strings and views."""
    words = pa.array(["b", "a", None, "b"]).cast(kind)
    content = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "soil": words, "c": pa.array(list("vuuv")).cast(kind)})
    content = content.append_column("group", pa.array(list("1122")).cast(kind))
    WRITERS[f"trees.{suffix}"](content, str(tmp_path / f"t.{suffix}"))

    arrays = table(
        str(tmp_path / f"t.{suffix}"), "c", categorical=["soil"], missing="constant", fill=0, group="group"
    )

    assert arrays.facts["feature_names"] == ("x", "soil=a", "soil=b", "soil=")
    assert arrays.inputs[:].tolist() == [[1, 0, 1, 0], [2, 1, 0, 0], [3, 0, 0, 1], [4, 0, 1, 0]]
    assert (arrays.targets.tolist(), arrays.facts["class_names"]) == ([1, 0, 0, 1], ("u", "v"))
    assert arrays.groups.tolist() == list("1122")


@pytest.mark.parametrize("task", [None, "regression"])
def test_decimal_targets_are_numbers(task, tmp_path):
    parquet.write_table(
        pa.table({"x": [1.0, 2.0], "y": pa.array(["1.25", "-3.5"]).cast(pa.decimal128(9, 2))}),
        tmp_path / "t.parquet",
    )

    targets = table(str(tmp_path / "t.parquet"), "y", task=task).targets

    assert (targets.dtype, targets.tolist()) == (np.float64, [1.25, -3.5])


def test_format_of_csv_files_is_set_by_params(tmp_path):
    (tmp_path / "t.csv").write_text("1,5;a;?\n-2,25;b;7,0\n?;a;NA\n")
    options = {"delimiter": ";", "decimal": ",", "missing_values": ["?", "NA"], "header": False}

    arrays = table(str(tmp_path / "t.csv"), "f1", missing="constant", fill=-1.0, **options)
    configured = load_source(
        LoadDataConfig(
            source={
                "kind": "table",
                "path": str(tmp_path / "t.csv"),
                "target": "f1",
                "missing": "drop",
                **options,
            }
        ).source
    )

    assert arrays.facts["feature_names"] == ("f0", "f2")
    assert arrays.inputs[:].tolist() == [[1.5, -1], [-2.25, 7], [-1, -1]]
    assert configured.inputs[:].tolist() == [[-2.25, 7]]


def test_texts_of_missing_values_replace_those_of_arrow(tmp_path):
    (tmp_path / "t.csv").write_text("x,country\n1,NA\n2,FR\n3,-\n")

    found = table(
        str(tmp_path / "t.csv"), "country", task="classification", missing="drop", missing_values=["-"]
    )

    assert found.facts["class_names"] == ("FR", "NA")


def test_format_of_csv_is_refused_for_other_files(tmp_path):
    parquet.write_table(trees(), tmp_path / "t.parquet")

    with pytest.raises(DataError, match=r"t.parquet' is not a CSV file. Remove delimiter, decimal, missing"):
        table(str(tmp_path / "t.parquet"), "kind", decimal=",")


@pytest.mark.parametrize("delimiter", ["", ";;", '"', "\n", "§", 1])
def test_unusable_delimiters_are_rejected(delimiter):
    with pytest.raises(ValidationError, match="must be one character of ASCII"):
        LoadDataConfig(source={"kind": "table", "path": "t.csv", "target": "c", "delimiter": delimiter})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_integers_that_float32_rounds_are_refused(suffix, tmp_path):
    content = pa.table({"x": [2**24, 2**25, 2**24 + 1], "c": list("aba")})
    WRITERS[f"trees.{suffix}"](content, str(tmp_path / f"t.{suffix}"))

    with pytest.raises(
        DataError, match=r"column 'x' has 16777217 in row 2, .* which float32 rounds to 16777216"
    ):
        table(str(tmp_path / f"t.{suffix}"), "c")


def test_floats_after_the_integers_of_the_first_block_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "CSV_BLOCK_BYTES", 1000)
    (tmp_path / "t.csv").write_text("x,c\n" + "1,a\n" * 500 + "0.1,b\n")

    assert table(str(tmp_path / "t.csv"), "c").inputs[:][-1, 0] == np.float32(0.1)


def test_floats_are_rounded_to_float32(tmp_path):
    (tmp_path / "t.csv").write_text("x,c\n16777217.0,a\n0.1,b\n")

    assert table(str(tmp_path / "t.csv"), "c").inputs[:].ravel().tolist() == [2**24, float(np.float32(0.1))]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"x,x,c\n1,2,a\n", "several columns with the name 'x'. Rename them"),
        (
            "größe,c\n1,a\n".encode("latin-1"),
            "is not a readable table: it is not UTF-8. Convert the file to UTF-8",
        ),
        ("x,c\n1,schön\n".encode("latin-1"), "column 'c' has text that is not UTF-8. Convert"),
        (b"x,c\n1,a\nb,b\n", "column 'x' has the type string, which is not a number"),
        (b"x,c\n1,a\n2\n", "Expected 2 columns, got 1"),
    ],
)
def test_unreadable_csv_files_are_rejected(content, words, tmp_path):
    (tmp_path / "t.csv").write_bytes(content)

    with pytest.raises(DataError, match=words):
        table(str(tmp_path / "t.csv"), "c")


def test_mixed_types_are_rejected_with_the_value(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "CSV_BLOCK_BYTES", 1000)
    (tmp_path / "t.csv").write_text("x,c\n" + "1,2\n" * 500 + "many,3\n")

    with pytest.raises(DataError, match="conversion error to double: invalid value 'many'"):
        table(str(tmp_path / "t.csv"), "c")


@pytest.mark.parametrize("column", ["x", "c"])
def test_files_with_other_types_are_rejected(column, tmp_path):
    for number, values in enumerate(([1, 2], ["a", "b"])):
        columns = {"x": [1, 2], "c": [0, 1], column: values}
        parquet.write_table(pa.table(columns), tmp_path / f"{number}.parquet")

    with pytest.raises(DataError, match=rf"1.parquet: column '{column}' has the type string, but in"):
        table(str(tmp_path), "c")


def test_files_with_other_types_of_targets_are_rejected(tmp_path):
    for number, values in enumerate(([1, 2], [0.5, 1])):
        parquet.write_table(pa.table({"x": [1, 2], "c": values}), tmp_path / f"{number}.parquet")

    with pytest.raises(DataError, match="the column 'c' has the types int64, double in its files"):
        table(str(tmp_path), "c")


def test_several_targets_are_a_dict_of_columns(tmp_path):
    path = tmp_path / "trees.csv"
    path.write_text("height,kind,age,price\n8.5,oak,40,1.5\n2.5,ash,25,2.5\n4.0,oak,12,3.5\n")

    arrays = table(str(path), ["kind", "price"], features=["height"])

    assert {name: values.tolist() for name, values in arrays.targets.items()} == {
        "kind": [1, 0, 1],
        "price": [1.5, 2.5, 3.5],
    }
    assert arrays.facts["class_names"] == {"kind": ("ash", "oak"), "price": None}
    assert data.prepare(data.Splits(arrays)).info.num_outputs == {"kind": 2, "price": 1}


def test_row_without_one_of_several_targets_is_dropped(tmp_path):
    path = tmp_path / "trees.csv"
    path.write_text("height,a,b\n8.5,1,1\n2.5,,2\n4.0,0,\n1.0,0,3\n")

    arrays = table(str(path), ["a", "b"], missing="drop")

    assert arrays.inputs[:].tolist() == [[8.5], [1.0]]
    assert {name: values.tolist() for name, values in arrays.targets.items()} == {"a": [1, 0], "b": [1, 3]}
