"""Runs of the stages on masks, boxes, without targets, and with several inputs and targets."""

import json
import math
from collections import Counter
from shutil import rmtree

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from long_tests import cases, covering_cases, long
from PIL import Image
from stage_runs import load, read_outputs, train
from torch import nn
from torchmetrics.classification import MulticlassJaccardIndex

from stages import data
from stages.contracts.errors import BuilderError, DataError
from stages.contracts.outputs import ClassificationOutput, DetectionOutput, TrainOutput
from stages.data.datasets import Samples
from stages.data.trees import flatten
from stages.inference import read_epoch
from stages.learner import EvaluatorBuilder, LearnerSpec
from stages.learner.from_params import build_loader
from stages.metrics import LossMetric
from stages.models import Mlp, MlpRegressor, backward
from stages.params.fit_params import FitConfig
from stages.records import DefaultRecorder, load_file

COUNT, SIZE = 26, 16
UNET = {"kind": "unet", "channels": [4, 8]}
SEGMENTATION = {
    "metrics": ["loss", "accuracy", {"kind": "mean_iou", "num_classes": 3}],
    "augment": [{"kind": "random_crop", "padding": 2}, "horizontal_flip"],
}


def draw_squares():
    """Return images (N, 3, 16, 16) with a bright square of one of two colors, and their masks."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 60, (COUNT, 3, SIZE, SIZE), dtype=np.uint8)
    masks = np.zeros((COUNT, SIZE, SIZE), np.uint8)
    for number, (top, left) in enumerate(draws.integers(0, SIZE - 6, (COUNT, 2))):
        square = slice(top, top + 6), slice(left, left + 6)
        masks[number][square] = 1 + number % 2
        images[(number, number % 2, *square)] = 250
    return images, masks


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    images, masks = draw_squares()
    path = tmp_path_factory.mktemp("squares") / "squares.npz"
    np.savez(path, image=images, mask=masks, size=masks.mean((1, 2)), top=np.arange(COUNT) % 3)
    return path


def of(archive, inputs, targets=None):
    return {"kind": "npz", "path": str(archive), "inputs": inputs, "targets": targets}


def predict(folder, artifacts, epoch=2):
    """Return the outputs of the model of an epoch for each batch of the valid split."""
    model, _, _ = LearnerSpec.read(folder / "learner").build(0)
    load_file(model, artifacts / f"checkpoint/model-{epoch}.mpk.gz", DefaultRecorder())
    prepared = load(folder, json.loads((folder / "source.json").read_text()))
    model.eval()
    with torch.no_grad():
        return [model.valid_step(batch) for batch in build_loader(FitConfig(batch_size=8), prepared, "valid")]


def test_mean_iou_of_a_run_is_that_of_torchmetrics_over_the_valid_split(archive, tmp_path):
    """The last batch is smaller, which a mean of batches would weigh too much."""
    source = of(archive, "image", "mask")
    (tmp_path / "source.json").write_text(json.dumps(source))
    load(tmp_path, source)

    artifacts = train(tmp_path, UNET, **SEGMENTATION)

    items = predict(tmp_path, artifacts)
    assert [item.size for item in items] != [8] * len(items)
    logits, targets = (torch.cat([getattr(item, name) for item in items]) for name in ("output", "targets"))
    metric = MulticlassJaccardIndex(num_classes=3)(logits.argmax(1), targets)
    values = json.loads((artifacts / "metrics.json").read_text())["valid"]
    assert values["Mean IoU"] == pytest.approx(metric.item(), abs=1e-6)
    hits = (logits.argmax(1) == targets).double().mean().item()
    assert values["Accuracy"] == pytest.approx(100 * hits, abs=1e-4)


def test_segmentation_learns_the_squares(archive, tmp_path):
    load(tmp_path, of(archive, "image", "mask"))

    artifacts = train(tmp_path, UNET, num_epochs=15, metrics=SEGMENTATION["metrics"])

    assert json.loads((artifacts / "metrics.json").read_text())["valid"]["Mean IoU"] > 0.5


class Contrast(nn.Module):
    """A model that brings two views of a sample together, and those of other samples apart."""

    def __init__(self, input_shape, width=8):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), width))

    def valid_step(self, batch):
        first, second = (F.normalize(self.net(view), dim=1) for view in batch.inputs)
        logits, partners = first @ second.T / 0.2, torch.arange(len(first))
        return ClassificationOutput(F.cross_entropy(logits, partners), logits, partners)

    def train_step(self, batch):
        item = self.valid_step(batch)
        return TrainOutput(self, backward(self, item.loss), item)


class SeveralHeads(nn.Module):
    """A model with two inputs and three targets."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.names = sorted(num_outputs)
        size = math.prod(input_shape["image"]) + math.prod(input_shape["size"])
        self.heads = nn.ModuleDict({name: nn.Linear(size, num_outputs[name]) for name in ("top", "size")})
        self.pixels = nn.Conv2d(input_shape["image"][0], num_outputs["mask"], 1)

    def valid_step(self, batch):
        images, sizes = batch.inputs["image"], batch.inputs["size"]
        features = torch.cat((images.flatten(1), sizes[:, None]), dim=1)
        top, size = (self.heads[name](features) for name in ("top", "size"))
        pixels = F.cross_entropy(self.pixels(images), batch.targets["mask"])
        loss = F.cross_entropy(top, batch.targets["top"]) + pixels
        loss = loss + F.mse_loss(size[:, 0], batch.targets["size"])
        return ClassificationOutput(loss, top, batch.targets["top"])

    train_step = Contrast.train_step


class OneBox(nn.Module):
    """A model that predicts one box for each image."""

    def __init__(self, input_shape):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 4))

    def valid_step(self, batch):
        boxes = self.net(batch.inputs)
        targets = [
            {"boxes": rows, "labels": labels}
            for rows, labels in zip(batch.targets["boxes"], batch.targets["labels"], strict=True)
        ]
        loss = sum(F.smooth_l1_loss(box.expand_as(part["boxes"]), part["boxes"], reduction="sum")
                   for box, part in zip(boxes, targets, strict=True)) / len(boxes)  # fmt: skip
        names = {"scores": torch.ones(1), "labels": torch.zeros(1, dtype=torch.int64)}
        return DetectionOutput(loss, [{"boxes": box[None]} | names for box in boxes], targets)

    train_step = Contrast.train_step


AUTOENCODER = {"kind": "mlp_regressor", "hidden_sizes": [4]}
CROPS = {"augment": [{"kind": "random_crop", "padding": 3}], "views": 2, "metrics": ["loss"]}
HEADS = {"kind": f"{__name__}:SeveralHeads"}
RUNS = {
    "masks": (("image", "mask"), UNET, SEGMENTATION),
    "no targets": (("image", None), AUTOENCODER, {"metrics": ["loss", "psnr"]}),
    "two views": (("image", None), {"kind": f"{__name__}:Contrast"}, CROPS),
    "several": ((["image", "size"], ["mask", "top", "size"]), HEADS, SEGMENTATION | {"metrics": ["loss"]}),
}


def write_boxes(folder, images, masks):
    """Write the images with the box around each square, and none around the fifth."""
    source = write_images(folder, images, masks)
    files, annotations = [], []
    for number, mask in enumerate(masks):
        rows, columns = (np.flatnonzero(mask.any(axis)).tolist() for axis in (1, 0))
        box = [columns[0], rows[0], len(columns), len(rows)]
        files.append({"id": number, "file_name": f"{number:02}.png", "width": SIZE, "height": SIZE})
        annotations += [{"image_id": number, "bbox": box, "category_id": 1}] if number != 4 else []
    content = {"images": files, "annotations": annotations, "categories": [{"id": 1, "name": "square"}]}
    (folder / "boxes.json").write_text(json.dumps(content))
    return {"kind": "image_folder", "path": source["path"], "boxes": str(folder / "boxes.json")}


def write_images(folder, images, masks):
    for number, (image, mask) in enumerate(zip(images, masks, strict=True)):
        for part, array in (("images", image.transpose(1, 2, 0)), ("masks", mask)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(folder / part / f"{number:02}.png")
    return {"kind": "image_folder", "path": str(folder / "images"), "masks": str(folder / "masks")}


@pytest.mark.parametrize(
    "options", cases({"plain": ({},), "resized": ({"size": [8, 12], "ignored": 2},)}, ["resized"])
)
def test_index_of_masks_gives_the_run_of_tensors(options, tmp_path):
    source = write_images(tmp_path, *draw_squares()) | options

    outputs = []
    for form in ("tensors", "index"):
        load(tmp_path / form, source, materialize=form)
        files = read_outputs(train(tmp_path / form, UNET, **SEGMENTATION | {"augment": ["vertical_flip"]}))
        outputs.append({name: content for name, content in files.items() if "trainer" not in name})

    assert outputs[0] == outputs[1]


def test_ignored_value_of_masks_is_no_class(tmp_path):
    images, masks = draw_squares()

    prepared = load(tmp_path, write_images(tmp_path, images, masks) | {"ignored": 2})

    assert prepared.info.num_classes == 2
    assert set(prepared.train.targets.unique().tolist()) == {-100, 0, 1}


def test_masks_of_folders_named_as_splits_are_split(tmp_path):
    images, masks = draw_squares()
    for name, part in (("train", slice(0, 20)), ("val", slice(20, 26))):
        write_images(tmp_path / name, images[part], masks[part])
        for kind in ("images", "masks"):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / name / kind).rename(tmp_path / kind / name)
    folders = {"path": str(tmp_path / "images"), "masks": str(tmp_path / "masks")}

    prepared = load(tmp_path, {"kind": "image_folder", **folders})

    assert prepared.info.counts == {"train": 20, "valid": 6}
    assert torch.equal(prepared.valid.targets, torch.tensor(masks[20:]))


def remove_mask(folder):
    (folder / "masks/03.png").unlink()


def write_color(folder):
    Image.new("RGB", (SIZE, SIZE)).save(folder / "masks/03.png")


def write_large(folder):
    Image.new("L", (SIZE, SIZE + 1)).save(folder / "masks/03.png")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_mask, "has no mask of the image 03.png. Add a file 03.png, or remove the image"),
        (write_color, "03.png is not a mask: its mode is RGB, and a mask has one channel"),
        (write_large, "03.png has 17×16 pixels, but an earlier image has 16×16"),
    ],
)
def test_mask_that_does_not_fit_is_an_error_with_its_file(change, message, tmp_path):
    source = write_images(tmp_path, *draw_squares())
    change(tmp_path)

    with pytest.raises(DataError, match=message):
        load(tmp_path, source)


def test_autoencoder_predicts_its_inputs():
    model = MlpRegressor((1, 4, 4), 16)
    inputs = torch.rand(3, 1, 4, 4)

    output = model.valid_step(data.Batch(inputs, None))

    assert torch.equal(output.targets, inputs)
    assert output.output.shape == inputs.shape


def test_class_model_without_targets_is_an_error():
    with pytest.raises(BuilderError, match="needs targets, and the data has none. Use RegressionStep"):
        Mlp((4,), 2).valid_step(data.Batch(torch.rand(3, 4), None))


def test_evaluation_of_the_saved_epoch_has_its_views(archive, tmp_path):
    """A batch of another epoch has other views, and so another loss."""
    names, model, params = RUNS["two views"]
    prepared = load(tmp_path, of(archive, *names))
    artifacts = train(tmp_path, model, **params)
    loader = build_loader(FitConfig(batch_size=8, **params), prepared, "valid")
    built, _, _ = LearnerSpec.read(tmp_path / "learner").build(0)
    load_file(built, artifacts / "checkpoint/model-2.mpk.gz", DefaultRecorder())

    loader.set_epoch(read_epoch(artifacts / "checkpoint/model-2.mpk.gz"))

    values = EvaluatorBuilder(tmp_path).metrics(LossMetric()).build(built).eval("valid", loader)
    assert values == json.loads((artifacts / "metrics.json").read_text())["valid"]


def test_epoch_of_a_model_is_that_of_its_file_name_or_its_manifest(tmp_path):
    (tmp_path / "exports").mkdir()
    (tmp_path / "exports/manifest.json").write_text('{"epoch": 3, "files": {}}')

    names = "model.mpk.gz", "exports/model.safetensors", "checkpoint/model-5.bin", "other/model.mpk.gz"
    assert [read_epoch(tmp_path / name) for name in names] == [3, 3, 5, 1]


def test_views_of_one_are_in_no_key():
    assert "views" not in FitConfig().key_params()
    assert FitConfig(views=2).key_params()["views"] == 2


class Noisy:
    """A map-style dataset that draws a random number in each sample, as an augmentation does."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        image = np.random.default_rng(index).random((1, 8, 8)).astype(np.float32)
        return image + 0.3 * torch.rand(()).item(), (image[0] > 0.5).astype(np.int64)


BATCHES, EPOCHS = 3, 2
"""Batches of an epoch: 20 samples by 8."""
LAZY = f"{__name__}:Noisy"
SAMPLES = {
    **{name: (model, params) for name, (_, model, params) in RUNS.items()},
    "boxes": ({"kind": f"{__name__}:OneBox"}, SEGMENTATION | {"metrics": ["loss", "map"]}),
    "lazy": (UNET, {"augment": ["horizontal_flip"], "metrics": ["loss", "accuracy"]}),
}
SCHEDULES = {
    "warm-up": {"kind": "linear", "final": 0.0, "per": "update", "warmup": "50 %"},
    "one epoch": {"kind": "linear", "final": 0.0, "per": "update", "num_iters": "1 epoch"},
}


@pytest.fixture
def sources(archive, tmp_path):
    """Return the options of load-data for each of `SAMPLES`."""
    boxes = write_boxes(tmp_path, *draw_squares())
    return {
        **{name: {"source": of(archive, *names)} for name, (names, _, _) in RUNS.items()},
        "boxes": {"source": boxes, "materialize": "index"},
        "lazy": {"source": {"kind": "dataset", "factory": LAZY, "lazy": True}},
    }


def list_rates(schedule, limit, window):
    """Return the rate of each batch, of a schedule from 0.02 to 0 with a step for each update."""
    batches = limit or BATCHES
    updates = [epoch * -(-batches // window) + n // window for epoch in range(EPOCHS) for n in range(batches)]
    total = updates[-1] + 1
    warmup = round(total / 2) if schedule == "warm-up" else 0
    decay = {"warm-up": total - warmup, "one epoch": total // EPOCHS}[schedule]
    return [
        0.02 * ((step + 1) / (warmup + 1) if step < warmup else max(0.0, 1 - (step - warmup) / decay))
        for step in updates
    ]


def read_rates(artifacts):
    files = [artifacts / f"train/epoch-{epoch}/Learning_Rate.log" for epoch in range(1, EPOCHS + 1)]
    return [float(line.partition(",")[0]) for file in files for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "limit", "schedule", "window", "stop_after"),
    covering_cases(list(SAMPLES), [None, 2], list(SCHEDULES), [1, 2], [2, 5], strength=1),
)
def test_interrupted_run_equals_an_uninterrupted_one(
    name, limit, schedule, window, stop_after, sources, tmp_path
):
    """The rates are those of a schedule that counts the updates of the run."""
    model, params = SAMPLES[name]
    options = params | {
        "metrics": [*params["metrics"], "learning_rate"],
        "limit_batches": {"train": limit},
        "grads_accumulation": {"batches": window},
        "schedule": SCHEDULES[schedule],
        "allowed": [LAZY],
    }
    for folder in ("whole", "resumed"):
        load(tmp_path / folder, **sources[name])

    whole = train(tmp_path / "whole", model, **options)
    resumed = train(tmp_path / "resumed", model, stop_after=stop_after, num_workers=2, **options)

    assert read_outputs(resumed) == read_outputs(whole)
    assert read_rates(whole) == pytest.approx(list_rates(schedule, limit, window), abs=1e-9)


def count_samples(split, part):
    """Return how often each value of *part*, ``inputs`` or ``targets``, is in *split*."""
    samples = (Samples.of([split[index]]) for index in range(len(split)))
    leaves = (flatten(getattr(sample, part), part).values() for sample in samples)
    return Counter(tuple(leaf.numpy().tobytes() for leaf in of_sample) for of_sample in leaves)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "boxes"])
def test_folds_of_samples_of_any_structure_divide_them(name, sources, tmp_path):
    """A sample of several leaves stays together, and its first leaf of classes has the same proportions."""
    part = "targets" if name == "lazy" else "inputs"  # its inputs are drawn

    folds = [load(tmp_path / str(fold), **sources[name], folds=3, fold=fold) for fold in (1, 2, 3)]

    valid = [count_samples(prepared.valid, part) for prepared in folds]
    assert [counts.total() for counts in valid] == [8, 9, 9]
    everything = sum(valid, Counter())
    for prepared, counts in zip(folds, valid, strict=True):
        assert count_samples(prepared.train, part) + counts == everything
    if name == "several":
        tops = [prepared.valid.targets["top"].bincount().tolist() for prepared in folds]
        assert all(max(counts) - min(counts) <= 1 for counts in tops)


class Scored(MlpRegressor):
    """A model that logs a number that grows while its loss falls."""

    def forward_regression(self, batch):
        item = super().forward_regression(batch)
        self.log("score", -item.loss)
        return item


def test_run_without_targets_stops_early_by_a_logged_number_also_if_it_is_resumed(archive, tmp_path):
    """The number is to become low, and the loss as well."""
    rule = {"metric": "score", "direction": "lowest", "n_epochs": 2}
    params = {"metrics": ["loss", {"kind": "scalar", "field": "score"}], "early_stopping": rule}
    model = AUTOENCODER | {"kind": f"{__name__}:Scored"}
    for folder in ("whole", "resumed"):
        load(tmp_path / folder, of(archive, "image"))

    whole = train(tmp_path / "whole", model, num_epochs=9, **params)
    resumed = train(tmp_path / "resumed", model, stop_after=6, num_epochs=9, **params)

    values = json.loads((whole / "metrics.json").read_text())
    assert values["epoch"] < 9
    assert values["valid"]["score"] == -values["valid"]["Loss"]
    assert read_outputs(resumed) == read_outputs(whole)


@pytest.mark.parametrize(
    ("warmup", "schedule", "continues"),
    [
        ("1 epoch", {"kind": "constant"}, True),
        long(2, {"kind": "step", "step_size": "1 epoch", "gamma": 0.5}, True),
        long("50 %", {"kind": "constant"}, False),
        (2, {"kind": "cosine"}, False),
    ],
)
def test_run_of_more_epochs_continues_unless_its_schedule_is_a_share_of_it(
    warmup, schedule, continues, archive, tmp_path, capsys
):
    params = {"schedule": schedule | {"warmup": warmup}, "metrics": ["loss", "learning_rate"]}
    for folder in ("longer", "whole"):
        load(tmp_path / folder, of(archive, "image"))
    train(tmp_path / "longer", AUTOENCODER, **params)
    rmtree(tmp_path / "longer/artifacts")
    capsys.readouterr()

    longer = train(tmp_path / "longer", AUTOENCODER, num_epochs=3, **params)

    assert ("epoch 1/3" not in capsys.readouterr().out) == continues
    whole = train(tmp_path / "whole", AUTOENCODER, num_epochs=3, **params)
    assert read_outputs(longer) == read_outputs(whole)
