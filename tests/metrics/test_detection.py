"""The mean average precision of boxes, compared with values that were computed on paper and a direct loop."""

import importlib

import numpy as np
import pytest
import torch

from stages.contracts.outputs import DetectionOutput
from stages.metrics import MeanAveragePrecisionMetric
from stages.metrics.detection import RECALLS, THRESHOLDS, measure_overlaps

BOX, OTHER = [0.0, 0.0, 10.0, 10.0], [20.0, 20.0, 30.0, 30.0]


def boxes(rows, labels, scores=None):
    parts = {"boxes": torch.tensor(rows).reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}
    return parts | ({} if scores is None else {"scores": torch.tensor(scores)})


def measure(*images):
    predictions, targets = zip(*images, strict=True)
    return MeanAveragePrecisionMetric().measure(DetectionOutput(torch.zeros(()), predictions, targets))


@pytest.mark.parametrize(
    ("predicted", "target", "value"),
    [
        (boxes([BOX], [1], [0.9]), boxes([BOX], [1]), 100),
        (boxes([BOX], [2], [0.9]), boxes([BOX], [1]), 0),
        (boxes([], [], []), boxes([BOX], [1]), 0),
        # a wrong box with a higher score: the precision is 1/2 at each recall
        (boxes([OTHER, BOX], [1, 1], [0.9, 0.8]), boxes([BOX], [1]), 50),
        # one of two targets: the precision is 1 up to a recall of 0.5, at 51 of 101 recalls
        (boxes([BOX], [1], [0.9]), boxes([BOX, OTHER], [1, 1]), 100 * 51 / 101),
        # an overlap of 0.8: correct at 7 of 10 thresholds
        (boxes([[0.0, 0.0, 10.0, 8.0]], [1], [0.9]), boxes([BOX], [1]), 70),
        # the second box of one target is wrong, after the last recall
        (boxes([BOX, BOX], [1, 1], [0.9, 0.8]), boxes([BOX], [1]), 100),
        # two classes, one of them missed
        (boxes([BOX], [1], [0.9]), boxes([BOX, OTHER], [1, 2]), 50),
    ],
)
def test_value_of_an_image(predicted, target, value):
    assert measure((predicted, target)).value == pytest.approx(value, abs=1e-9)


def test_image_without_targets_has_no_value_but_its_boxes_count():
    empty = boxes([BOX], [1], [0.95]), boxes([], [])
    perfect = boxes([BOX], [1], [0.9]), boxes([BOX], [1])

    assert np.isnan(measure(empty).value)
    assert measure(empty, perfect).value == pytest.approx(50)


def test_value_does_not_depend_on_the_default_device_of_the_program():
    image = boxes([BOX, OTHER], [1, 2], [0.9, 0.8]), boxes([BOX], [1])

    with torch.device("meta"):  # its tensors have no values
        assert measure(image).value == 100


def draw_images(count):
    draws = np.random.default_rng(0)
    for _ in range(count):
        corners = draws.uniform(0, 10, (6, 2))
        target = np.hstack((corners, corners + 10)).astype(np.float32)
        predicted = target + draws.normal(0, 1.5, target.shape).astype(np.float32)
        labels = draws.integers(0, 3, 6)
        changed = np.where(draws.random(6) < 0.8, labels, 1)
        kept = draws.random(6) < 0.7
        yield (
            boxes(predicted.tolist(), changed.tolist(), draws.random(6).tolist()),
            boxes(target[kept].tolist(), labels[kept].tolist()),
        )


def compute_directly(images):
    """Return the value by loops over classes, thresholds, images, boxes and recalls."""
    precisions = []
    for label in sorted({label for _, target in images for label in target["labels"].tolist()}):
        for threshold in THRESHOLDS.tolist():
            scored, count = [], 0
            for predicted, target in images:
                rows = target["boxes"][target["labels"] == label]
                count += len(rows)
                free = set(range(len(rows)))
                is_class = predicted["labels"] == label
                pairs = list(zip(predicted["scores"][is_class], predicted["boxes"][is_class], strict=True))
                for score, box in sorted(pairs, key=lambda pair: -pair[0]):
                    ious = {
                        row: measure_overlaps(box[None].double(), rows[[row]].double()).item() for row in free
                    }
                    best = max(ious, key=ious.get, default=None)
                    is_hit = best is not None and ious[best] >= threshold
                    free -= {best} if is_hit else set()
                    scored.append((score.item(), is_hit))
            hits = np.cumsum([is_hit for _, is_hit in sorted(scored, key=lambda pair: -pair[0])])
            points = [(hit / count, hit / (rank + 1)) for rank, hit in enumerate(hits)]
            precisions += [
                max((precision for recall, precision in points if recall >= step / 100), default=0)
                for step in range(101)
            ]
    return 100 * np.mean(precisions)


def test_value_is_that_of_a_direct_computation_and_adds_over_uneven_batches():
    images = list(draw_images(23))

    total = measure(*images[:16]) + measure(*images[16:22]) + measure(*images[22:])

    assert total.value == pytest.approx(compute_directly(images), abs=1e-9)
    assert total.value == measure(*images).value
    assert 5 < total.value < 95
    assert total.count == 23


VALUES_OF_TORCHMETRICS = {(0, 3): 34.866229, (1, 6): 25.633118, (6, 3): 25.952178}
"""Percent, by the seed and the number of boxes in an image: of torchmetrics 1.9.0 with pycocotools 2.0.11."""


def draw_crowded_images(seed, limit, count=100):
    """Return images with up to *limit* targets of 1 to 4 classes; the scores of odd seeds have ties."""
    draws, images = np.random.default_rng(seed), []
    for _ in range(count):
        size = draws.integers(0, limit + 1)
        corners = draws.uniform(0, 40, (size, 2))
        target = np.hstack((corners, corners + draws.uniform(5, 20, (size, 2)))).astype(np.float32)
        predicted = (target + draws.normal(0, 1.0, target.shape)).astype(np.float32)
        labels = draws.integers(0, 1 + seed % 4, size)
        changed = np.where(draws.random(size) < 0.8, labels, 0)
        kept = draws.random(size) < 0.7
        scores = draws.random(size).round(2 if seed % 2 else 6)
        found = boxes(predicted.tolist(), changed.tolist(), scores.tolist())
        images.append((found, boxes(target[kept].tolist(), labels[kept].tolist())))
    return images


@pytest.mark.parametrize(("seed", "limit"), VALUES_OF_TORCHMETRICS)
def test_value_of_uneven_batches_is_that_of_torchmetrics_over_all_images(seed, limit):
    images = draw_crowded_images(seed, limit)

    total = measure(*images[:48]) + measure(*images[48:96]) + measure(*images[96:])

    assert total.value == pytest.approx(VALUES_OF_TORCHMETRICS[seed, limit], abs=2e-6)


@pytest.mark.parametrize(("seed", "limit"), VALUES_OF_TORCHMETRICS)
def test_stored_values_are_those_of_torchmetrics(seed, limit):
    """Its own recalls are rounded to float32, so it misses some that are exactly a multiple of 1 %."""
    try:
        for package in ("torchvision", "pycocotools"):
            importlib.import_module(package)
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    from torchmetrics.detection import MeanAveragePrecision

    metric = MeanAveragePrecision(rec_thresholds=RECALLS.tolist())
    metric.update(*map(list, zip(*draw_crowded_images(seed, limit), strict=True)))

    assert 100 * metric.compute()["map"].item() == pytest.approx(
        VALUES_OF_TORCHMETRICS[seed, limit], abs=2e-6
    )
