"""Quick tests of the model and the data, to run before a long training."""

import torch

from model import CenterDetector
from source import shapes
from stages.data import Batch


def make_batch(samples: int) -> Batch:
    """Return images between 0 and 1, and the boxes and labels of each."""
    arrays = shapes(samples=samples)
    rows = {
        name: [torch.from_numpy(leaf[number]) for number in range(samples)]
        for name, leaf in arrays.targets.items()
    }
    return Batch(torch.from_numpy(arrays.inputs) / 255, rows)


def test_center_of_each_box_has_the_color_of_its_object() -> None:
    """A color is brighter than most of the noise."""
    arrays = shapes(samples=20)

    for number, image in enumerate(arrays.inputs):
        for left, top, right, bottom in arrays.targets["boxes"][number].astype(int):
            center = image[:, (top + bottom) // 2, (left + right) // 2]
            assert (center >= 100).all()


def test_trained_detector_finds_the_objects_of_a_batch() -> None:
    """After seventy steps on two images, the boxes with a high score are those of the targets."""
    torch.manual_seed(0)
    batch = make_batch(2)
    model = CenterDetector((3, 48, 48), {"labels": 2})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(70):
        optimizer.zero_grad()
        model.valid_step(batch).loss.backward()
        optimizer.step()

    output = model.valid_step(batch)

    for predicted, target in zip(output.predictions, output.targets, strict=True):
        is_found = predicted["scores"] > 0.5
        assert is_found.sum() == len(target["labels"])
        assert torch.cdist(predicted["boxes"][is_found], target["boxes"]).min(0).values.max() < 4
