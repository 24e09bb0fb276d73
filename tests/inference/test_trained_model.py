"""A trained model predicts what save-model measured, for samples as the source reads them."""

import csv
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from small_runs import prepare, train

from stages import data, load_model
from stages.contracts.config import Use
from stages.contracts.errors import BuilderError, CheckpointError, DataError, PluginError
from stages.contracts.outputs import ClassificationOutput, RegressionOutput, SequenceOutput, TrainOutput
from stages.data.batchers import NormalizeBatcher
from stages.inference import Predictions, Preprocessing, TrainedModel, read_inputs
from stages.inference.prediction_files import to_rows
from stages.metrics import AccuracyMetric
from stages.models import ClassificationStep, RegressionStep, backward
from stages.params.fit_params import FitConfig


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Return the path of a table with a category, missing numbers and the names of two classes."""
    path = tmp_path_factory.mktemp("table") / "flowers.csv"
    generator = np.random.default_rng(1)
    rows = [
        {
            "length": "" if number % 9 == 0 else round(float(generator.normal()), 3),
            "color": ["red", "blue", "01"][number % 3],
            "width": number,
            "kind": ["rose", "tulip"][number % 2],
        }
        for number in range(60)
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def table_source(table):
    """Return the source of the table."""
    options = {"categorical": ["color"], "missing": "constant", "fill": 0.5}
    return {"kind": "table", "path": str(table), "target": "kind", **options}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, table_source):
    """Return the artifact directory of a model of the table."""
    return train(tmp_path_factory.mktemp("run"), table_source)


@pytest.mark.parametrize("recorder", ["default", "bin"])
def test_predictions_of_the_test_split_are_those_that_save_model_measured(tmp_path, table_source, recorder):
    directory = train(tmp_path, table_source, recorder)
    split = data.read_split(tmp_path / "prepared", "test")

    predictions = load_model(directory).predict(split.inputs)

    measured = json.loads((directory / "test/split/metrics.json").read_text())["test"]
    assert 100 * (predictions.classes == split.targets).double().mean() == pytest.approx(measured["Accuracy"])
    total = torch.nn.functional.cross_entropy(predictions.outputs.double(), split.targets)
    assert float(total) == pytest.approx(measured["Loss"], rel=1e-6)
    assert predictions.labels == [["rose", "tulip"][number] for number in predictions.classes.tolist()]


def test_outputs_are_the_bits_of_an_evaluation(directory):
    model = load_model(directory)
    prepared = directory.parent / "prepared"
    split, info = data.read_split(prepared, "test"), data.read_info(prepared / "dataset.json")
    batcher = NormalizeBatcher(info.normalization.mean, info.normalization.std)
    loader = data.DataLoaderBuilder(batcher).batch_size(7).build(split)

    with torch.no_grad():
        evaluated = torch.cat([model.model.valid_step(batch).output for batch in loader])

    assert torch.equal(model.predict(split.inputs).outputs, evaluated)


def test_file_of_an_export_is_loaded_too(directory):
    samples = data.read_split(directory.parent / "prepared", "test").inputs

    exported = load_model(directory).model.state_dict()
    loaded = load_model(directory / "exports/model.safetensors")

    assert all(torch.equal(value, exported[name]) for name, value in loaded.model.state_dict().items())
    assert len(loaded.predict(samples)) == len(samples)


def test_loading_and_predicting_leave_the_random_state_and_the_mode(directory):
    torch.manual_seed(3)
    before = torch.get_rng_state()

    model = load_model(directory)
    model.train()
    model.predict(data.read_split(directory.parent / "prepared", "test").inputs)

    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def write_images(folder):
    generator = np.random.default_rng(2)
    for number in range(6):
        path = folder / f"images/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (9, 7, 3) if number % 3 else (4, 4, 3)
        Image.fromarray(generator.integers(0, 256, size, np.uint8)).save(path)
    return {"kind": "image_folder", "path": str(folder / "images"), "size": [6, 5]}, folder / "images"


def write_texts(folder):
    path = folder / "texts.jsonl"
    samples = [{"body": f"{'good' * (number % 4 + 1)} ü", "label": number % 2} for number in range(9)]
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return {"kind": "text", "path": str(path), "text": "body", "max_length": 12}, path


def write_words(folder):
    source, path = write_texts(folder)
    return source | {"tokenizer": "words"}, path


def write_array(folder):
    np.savez(folder / "x.npz", inputs=np.arange(24.0).reshape(8, 3), targets=np.arange(8) % 2)
    return {"kind": "npz", "path": str(folder / "x.npz")}, folder / "x.npz"


@pytest.mark.parametrize("write", [write_images, write_texts, write_words, write_array])
def test_files_are_read_as_the_source_of_the_training_reads_them(tmp_path, write):
    source, path = write(tmp_path)
    config = prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    assert_reads_what_was_trained(tmp_path / "prepared", config, path)


@pytest.mark.parametrize("missing", ["constant", "mean"])
@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
def test_tables_are_read_as_the_source_of_the_training_reads_them(
    tmp_path, table, table_source, encoding, missing
):
    source = table_source | {"encoding": encoding, "missing": missing}
    config = prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    assert_reads_what_was_trained(tmp_path / "prepared", config, table)


def assert_reads_what_was_trained(prepared, config, path):
    info = data.read_info(prepared / "dataset.json")
    stored = data.read_split(prepared, "train").inputs
    preprocessing = Preprocessing(info, NormalizeBatcher())

    blocks = list(read_inputs([path], info, config.source.model_dump(), 4))

    assert [len(block.names) for block in blocks[:-1]] == [4] * (len(blocks) - 1)
    found = torch.cat([preprocessing(block.samples) for block in blocks])
    assert torch.equal(found, stored.to(torch.float32))


def write_truth_values(folder):
    path = folder / "truth.csv"
    path.write_text("is_new,x,y\n" + "".join(f"{str(n % 2 == 0).lower()},{n},{n % 3}\n" for n in range(9)))
    return {"path": str(path), "target": "y"}, path


def write_absent_categories(folder):
    path = folder / "absent.parquet"
    columns = {"code": [1.0, float("nan"), None, 2.0], "x": [1.0, None, 3.0, 4.0], "y": [0, 1, 0, 1]}
    parquet.write_table(pa.table(columns), path)
    return {"path": str(path), "target": "y", "categorical": ["code"], "missing": "mean"}, path


def write_equal_names(folder):
    path = folder / "equal.csv"
    path.write_text("a,a=b,y\n" + "".join(f"{'bca'[n % 3]},{n},{n % 2}\n" for n in range(9)))
    return {"path": str(path), "target": "y", "categorical": ["a"]}, path


TABLES = [write_truth_values, write_absent_categories, write_equal_names]


@pytest.mark.parametrize("write", TABLES)
@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
def test_columns_have_the_features_of_the_training(tmp_path, write, encoding):
    """Truth values in CSV, NaN as a category, and a column with the name of a category's feature."""
    source, path = write(tmp_path)
    source |= {"kind": "table", "encoding": encoding}
    config = prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    assert_reads_what_was_trained(tmp_path / "prepared", config, path)


def write_hidden_texts(folder):
    for number in range(6):
        path = folder / f"texts/{'ab'[number % 2]}/{number}.{'TXT' if number < 2 else 'txt'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word " * (number + 1))
    path.with_name(".draft.txt").write_text("hidden")
    return {"kind": "text", "path": str(folder / "texts")}, folder / "texts"


def write_hidden_images(folder):
    source, path = write_images(folder)
    (path / "a/._0.png").write_bytes(b"not an image")
    return source, path


@pytest.mark.parametrize("write", [write_hidden_texts, write_hidden_images])
def test_folder_has_the_files_of_the_training(tmp_path, write):
    """Endings in capitals count, and names that start with a dot do not."""
    source, path = write(tmp_path)
    config = prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    assert_reads_what_was_trained(tmp_path / "prepared", config, path)


def test_input_without_samples_is_refused(tmp_path, directory, table_source):
    info = load_model(directory).info
    (tmp_path / "rows.csv").write_text("length,color,width\n")
    np.save(tmp_path / "rows.npy", np.zeros((0, 5)))
    parquet.write_table(
        pa.table({"length": [0.5], "color": ["red"], "width": [1]}).slice(1), tmp_path / "rows.parquet"
    )

    for path in tmp_path.glob("rows.*"):
        with pytest.raises(DataError, match=f"{path.name} has no samples. Correct the path"):
            list(read_inputs([path], info, table_source, 10))


def test_number_that_the_training_refuses_is_refused(tmp_path, directory, table_source):
    (tmp_path / "new.csv").write_text("length,color,width\n1,red,2\ninf,red,2\n")
    np.save(tmp_path / "new.npy", np.array([[1.0] * 5, [1e300] * 5]))
    info = load_model(directory).info

    for name, value in (("new.csv:1", "inf"), ("new.npy:1", r"1e\+300")):
        with pytest.raises(DataError, match=f"{name}: inputs must be finite float32 numbers; found {value}"):
            list(read_inputs([tmp_path / name.partition(":")[0]], info, table_source, 10))


MISTAKES = {
    "a category that was not trained": ("length,color,width\n1,green,2\n", "'green'.*Categories: .*blue"),
    "a column that is missing": ("length,width\n1,2\n", "lacks columns.*color"),
    "a number that is a text": ("length,color,width\nlong,red,2\n", "cannot be read.*'long'"),
}


@pytest.mark.parametrize(("content", "message"), MISTAKES.values(), ids=MISTAKES)
def test_wrong_table_is_one_message(tmp_path, directory, table_source, content, message):
    path = tmp_path / "new.csv"
    path.write_text(content)
    info = load_model(directory).info

    with pytest.raises(DataError, match=message):
        list(read_inputs([path], info, table_source, 10))


def test_text_that_is_not_utf_8_is_one_message(tmp_path):
    source, _ = write_texts(tmp_path)
    config = prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    info = data.read_info(tmp_path / "prepared/dataset.json")
    for name in ("new.txt", "new.csv"):
        path = tmp_path / name
        path.write_bytes(b"body\n\xff\n")

        with pytest.raises(DataError, match=f"{name} cannot be read: "):
            list(read_inputs([path], info, config.source.model_dump(), 4))


@pytest.mark.parametrize(
    ("name", "content"), [("new.txt", "a\n" * 5 + "\nb\n"), ("new.csv", "body\n" + "a\n" * 5 + '""\n')]
)
def test_empty_text_is_refused_with_its_place_in_the_file(tmp_path, name, content):
    """A batch has another count than the file."""
    source, _ = write_texts(tmp_path)
    config = prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    info = data.read_info(tmp_path / "prepared/dataset.json")
    (tmp_path / name).write_text(content)

    with pytest.raises(DataError, match=rf"{name}:[57]: the text is empty\. Remove it"):
        list(read_inputs([tmp_path / name], info, config.source.model_dump(), 4))


def test_samples_that_are_normalized_already_are_refused(tmp_path):
    source, _ = write_images(tmp_path)
    prepare(tmp_path / "prepared", source, valid_fraction=0.0)
    preprocessing = Preprocessing(data.read_info(tmp_path / "prepared/dataset.json"), NormalizeBatcher())

    with pytest.raises(DataError, match="which are uint8; found torch.float32"):
        preprocessing(torch.rand(2, 3, 6, 5))
    with pytest.raises(DataError, match=r"\(3, 6, 5\).*found samples of the shape \(6, 5\)"):
        preprocessing(torch.zeros(3, 6, 5, dtype=torch.uint8))


def test_code_that_is_not_allowed_is_not_run(tmp_path, directory):
    for name in ("learner.json", "config.json"):
        copy = tmp_path / name
        copy.mkdir()
        for path in directory.rglob("*.json"):
            target = copy / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    edit(tmp_path / "learner.json/learner/learner.json", "model", "os:abort")
    edit(tmp_path / "config.json/config.json", "fit", "os:abort", "batcher")

    remedy = "which is not built in. Read that code, and add the name to allowed if you trust it"
    with pytest.raises(CheckpointError, match=f"names os:abort, {remedy}"):
        load_model(tmp_path / "learner.json")
    with pytest.raises(PluginError, match="'os:abort' is not built in"):
        load_model(tmp_path / "config.json")


def edit(path, section, kind, key=None):
    content = json.loads(path.read_text())
    owner = content[section] if key is None else content[section][key]
    owner["kind"] = kind
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("outputs", "classes"),
    [
        (torch.tensor([[2.0], [-2.0]]), [1, 0]),  # one logit
        (torch.tensor([2.0, -2.0]), [1, 0]),
        (torch.tensor([[[[2.0, -2.0]]]]), [[[1, 0]]]),  # of each pixel, (N, 1, H, W)
        (torch.tensor([[[0.0, 3.0], [1.0, 0.0]]]), [[1, 0]]),  # (N, C, T)
    ],
)
def test_probabilities_of_one_logit_and_of_positions(directory, outputs, classes):
    predictions = load_model(directory)._interpret(outputs)

    assert predictions.classes.tolist() == classes
    assert torch.allclose(predictions.probabilities.sum(-1), torch.ones(()))


@pytest.mark.parametrize("outputs", [torch.tensor([[1e-9, 2e-9]]), torch.tensor([[1e-9]])])
def test_class_is_that_of_the_metrics_if_probabilities_are_equal(directory, outputs):
    """In float32 the sigmoid of 1e-9 is 0.5, and both probabilities of the two logits are."""
    [predicted] = load_model(directory)._interpret(outputs).classes.tolist()

    assert predicted == 1
    output = ClassificationOutput(torch.zeros(()), outputs, torch.tensor([predicted]))
    assert AccuracyMetric().measure(output).value == 100


class Speaker(torch.nn.Linear):
    """A model of three tokens from a vocabulary of two."""

    def valid_step(self, batch):
        logits = torch.stack([self(batch.inputs), -self(batch.inputs), self(batch.inputs)], dim=1)
        return SequenceOutput(logits.sum(), logits, None, None)


def test_each_token_of_a_sequence_has_probabilities(directory):
    model = load_model(directory)
    model.model = Speaker(5, 2)
    samples = data.read_split(directory.parent / "prepared", "test").inputs

    predictions = model.predict(samples)

    first = predictions.classes[:, 0]
    assert predictions.probabilities.shape == (len(samples), 3, 2)
    assert torch.equal(predictions.classes, torch.stack([first, 1 - first, first], dim=1))


class Line(RegressionStep, torch.nn.Linear):
    pass


class Unusual(torch.nn.Linear):
    def valid_step(self, batch):
        return batch


def test_model_whose_step_returns_no_output_is_refused(directory):
    model = load_model(directory)
    model.model = Unusual(5, 2)

    with pytest.raises(BuilderError, match="Unusual.valid_step returns a Batch, which has no tensor output"):
        model.predict(data.read_split(directory.parent / "prepared", "test").inputs)


def test_model_that_was_trained_on_several_views_is_refused(directory):
    model = load_model(directory)
    model.fit = model.fit.model_copy(update={"views": 2})

    with pytest.raises(BuilderError, match=r"take 2 views of each sample \(fit.views\), and predict has one"):
        model.predict(data.read_split(directory.parent / "prepared", "test").inputs)


class TwoHeads(torch.nn.Module):
    """A model of ids and numbers, with a class and a number as targets."""

    def __init__(self, input_shape, num_outputs, vocabulary_size=9):
        super().__init__()
        self.embed = torch.nn.EmbeddingBag(vocabulary_size, 3)
        self.heads = torch.nn.Linear(3 + input_shape["size"][0], num_outputs["kind"] + num_outputs["value"])

    def valid_step(self, batch):
        features = torch.cat((self.embed(batch.inputs["ids"]), batch.inputs["size"]), dim=1)
        output = self.heads(features)
        targets = batch.targets["value"]
        return RegressionOutput(((output[:, -1] - targets) ** 2).mean(), output, targets)

    def train_step(self, batch):
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)


def read_ids():
    """Return ids and numbers, with a class and a number as targets."""
    draws = np.random.default_rng(0)
    numbers = draws.normal([5, -90], [1, 30], (40, 2)).astype(np.float32)
    return data.Arrays(
        {"ids": draws.integers(0, 9, (40, 4)), "size": numbers},
        {"kind": np.arange(40) % 3, "value": draws.normal(7, 2, 40).astype(np.float32)},
        kinds={"inputs.ids": "tokens"},
    )


@pytest.mark.parametrize("per", ["dataset", "channel"])
def test_predictions_of_several_inputs_and_targets_are_normalized_as_in_training(per, tmp_path):
    """Each input has its own mean; ids have none."""
    names = f"{__name__}:TwoHeads", f"{__name__}:read_ids"
    directory = train(tmp_path, {"kind": names[1]}, model={"kind": names[0]}, per=per, metrics=["loss"])
    split = data.read_split(tmp_path / "prepared", "test")

    predictions = load_model(directory, allowed=names).predict(split.inputs)

    measured = json.loads((directory / "test/split/metrics.json").read_text())["test"]["Loss"]
    errors = predictions.outputs[:, -1] - split.targets["value"]
    assert float((errors**2).mean()) == pytest.approx(measured, rel=1e-5)
    assert predictions.classes is None


def test_regression_predicts_numbers(tmp_path):
    np.savez(tmp_path / "x.npz", inputs=np.arange(24.0).reshape(8, 3), targets=np.arange(8.0))
    prepare(tmp_path, {"kind": "npz", "path": str(tmp_path / "x.npz")}, valid_fraction=0.0)
    preprocessing = Preprocessing(data.read_info(tmp_path / "dataset.json"), NormalizeBatcher())
    model = TrainedModel(Line(3, 1), preprocessing, FitConfig())

    predictions = model.predict(np.arange(6.0).reshape(2, 3))

    assert predictions.classes is predictions.probabilities is predictions.class_names is None
    assert predictions.labels == model.model(torch.arange(6.0).reshape(2, 3)).flatten().tolist()


def test_lists_of_texts_and_of_arrays_are_inputs_beside_each_other():
    arrays = data.Arrays(
        {"size": np.ones((4, 2)), "text": np.ones((4, 3), np.uint8)},
        {"kind": np.arange(4) % 2, "price": np.arange(4.0)},
        kinds={"inputs.text": "tokens"},
    )
    info = data.prepare(data.Splits(arrays)).info.model_copy(update={"tokenizer": {"kind": "bytes"}})
    preprocessing = Preprocessing(info, data.build_batcher(Use(kind="normalize"), info.scaling))

    batch = preprocessing.build_batch({"size": [np.ones(2), np.full(2, 3)], "text": ["ab", "c"]})

    assert batch.inputs["size"].tolist() == [[0, 0], [2, 2]]
    assert batch.inputs["text"].tolist() == [[98, 99, 0], [100, 0, 0]]
    assert {name: leaf.dtype for name, leaf in batch.targets.items()} == {
        "kind": torch.int64,
        "price": torch.float32,
    }


def test_directory_without_a_description_of_the_data_is_refused(tmp_path, directory):
    for name in ("config.json", "learner/learner.json", "model.mpk.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((directory / name).read_bytes())

    with pytest.raises(CheckpointError, match=r"dataset.json does not exist: save-model has not run"):
        load_model(tmp_path)
    assert isinstance(load_model(tmp_path, data_directory=directory.parent / "prepared"), TrainedModel)
    with pytest.raises(CheckpointError, match=r"config.json cannot be read.*Pass an artifact directory"):
        load_model(tmp_path / "learner")
    with pytest.raises(
        CheckpointError, match=r"absent cannot be read: No such file.*Pass an artifact directory"
    ):
        load_model(tmp_path / "learner/absent")


def find_store(directory):
    [key] = (directory.parent / "runs").glob("*/key.json")
    return key.parent


@pytest.fixture(scope="module")
def averaged(tmp_path_factory, table_source):
    """Return the artifact directory of a run that averages its weights."""
    options = {"averaging": {"kind": "ema", "decay": 0.5}, "num_epochs": 2}
    return train(tmp_path_factory.mktemp("averaged"), table_source, **options)


def test_run_store_has_the_predictions_of_the_model_that_save_model_wrote(averaged):
    samples = data.read_split(averaged.parent / "prepared", "test").inputs

    found = load_model(find_store(averaged)).predict(samples)

    expected = load_model(averaged).predict(samples)
    assert torch.equal(found.outputs, expected.outputs)
    assert found.labels == expected.labels


@pytest.mark.parametrize("place", [lambda directory: directory, find_store])
def test_file_of_a_checkpoint_has_the_weights_of_its_epoch(averaged, place):
    states = []
    for epoch in (1, 2):
        model = load_model(place(averaged) / f"checkpoint/model-{epoch}.mpk.gz")
        states.append(torch.cat([weight.flatten() for weight in model.model.state_dict().values()]))

    average = torch.cat([weight.flatten() for weight in load_model(averaged).model.state_dict().values()])
    assert len({tuple(state.tolist()) for state in (*states, average)}) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("dataset.json", None, "dataset.json does not exist"),
        ("key.json", "[]", "key.json has no params of fit"),
        ("key.json", '{"params": {"batch_size": 0}}', "key.json has no params of fit"),
        ("checkpoint/trainer-1.mpk.gz", None, "has no checkpoint of epoch 1; found: none"),
        ("checkpoint/model-1.mpk.gz", "x", "checkpoint of epoch 1 is not intact"),
    ],
)
def test_damaged_run_store_is_refused(tmp_path, directory, name, content, message):
    store = shutil.copytree(find_store(directory), tmp_path / "store")
    (store / name).unlink()
    if content is not None:
        (store / name).write_text(content)

    with pytest.raises(CheckpointError, match=message):
        load_model(store)


def read_doubles():
    """Return numbers of 64 bits, of which float32 rounds each one, and classes."""
    inputs = 1e7 + np.random.default_rng(0).normal(0, 3, (40, 2))
    return data.Arrays(inputs, (inputs[:, 0] > 1e7).astype(int))


@pytest.mark.parametrize("batcher", ["normalize", "torch.utils.data:default_collate"])
def test_samples_of_the_source_have_the_predictions_of_the_prepared_data(tmp_path, batcher):
    """load-data stores floats as float32, in the byte order of the machine."""
    names = f"{__name__}:read_doubles", batcher
    directory = train(tmp_path, {"kind": names[0]}, batcher={"kind": batcher})
    model, inputs = load_model(directory, allowed=names), read_doubles().inputs

    expected = model.predict(torch.from_numpy(inputs).float()).outputs

    for samples in (inputs, inputs.astype(">f8"), list(inputs.astype(">f8")), inputs.tolist()):
        assert torch.equal(model.predict(samples).outputs, expected)


def test_labels_are_numbers_without_names():
    predictions = Predictions(torch.zeros(2, 3), torch.zeros(2, 3), torch.tensor([2, 0]))

    assert predictions.labels == [2, 0]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_class_without_a_name_has_its_number(count):
    """A data set may name more classes than occur, and a model may have more outputs than names."""
    probabilities = torch.eye(count)
    names = ("ant", "bee", "cat")

    predictions = Predictions(probabilities, probabilities, probabilities.argmax(1), names)

    assert predictions.labels == ["ant", "bee", "cat", 3][:count]
    assert list(to_rows(["x"] * count, predictions)[0])[2:] == ["p(ant)", "p(bee)", "p(cat)", "p(3)"][:count]


class Tagger(ClassificationStep, torch.nn.Module):
    """A model of a class for each id of a sequence."""

    def __init__(self, num_classes):
        super().__init__()
        self.embedding = torch.nn.Embedding(9, num_classes)

    def forward(self, ids):
        return self.embedding(ids).transpose(1, 2)

    def forward_classification(self, batch):
        logits = self(batch.inputs)
        return ClassificationOutput(
            self.loss(logits, batch.targets), logits, batch.targets, self.loss_weight(batch.targets)
        )


def read_tags():
    """Return sequences of one to nine ids, with a class for each of them."""
    is_id = np.arange(9) <= np.arange(40)[:, None] % 9
    ids = np.random.default_rng(0).integers(1, 9, is_id.shape)
    return data.Arrays(np.where(is_id, ids, 0), np.where(is_id, ids % 3, -100), kinds={"inputs": "tokens"})


def test_sequences_whose_batches_have_different_lengths_are_predicted(tmp_path):
    names = f"{__name__}:Tagger", f"{__name__}:read_tags"
    options = {"batcher": "pad", "batch_size": 2, "metrics": ["loss", "accuracy"]}
    directory = train(tmp_path, {"kind": names[1]}, model={"kind": names[0]}, **options)
    split = data.read_split(tmp_path / "prepared", "test")

    predictions = load_model(directory, allowed=names).predict(split.inputs)

    targets = split.targets[:, : predictions.classes.shape[1]]
    is_valued = targets != -100
    measured = json.loads((directory / "test/split/metrics.json").read_text())["test"]["Accuracy"]
    hits = (predictions.classes == targets)[is_valued].double()
    assert 100 * hits.mean() == pytest.approx(measured)
    assert torch.equal(predictions.classes == -100, predictions.outputs.isnan().all(1))
