"""Compare the features of the trained model with the pixels, by the nearest neighbors: `python probe.py`."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from stages import load_model


def measure_neighbors(features: Tensor, classes: Tensor, labeled: int) -> float:
    """Return the accuracy in percent of the class of the nearest of the first *labeled* samples."""
    distances = torch.cdist(features[labeled:], features[:labeled])
    predicted = classes[distances.argmin(1)]
    return 100 * (predicted == classes[labeled:]).float().mean().item()


def main(labeled: int = 50) -> None:
    """Print both accuracies for *labeled* samples with a known class."""
    digits = load_digits()
    images = torch.from_numpy(digits.images[:, None]).byte()
    classes = torch.from_numpy(digits.target)
    with torch.no_grad():
        features = load_model("artifacts", allowed=["model:SimClr"])(images)
    print(f"pixels    {measure_neighbors(images.flatten(1).float(), classes, labeled):.1f} %")
    print(f"features  {measure_neighbors(features, classes, labeled):.1f} %")


if __name__ == "__main__":
    main()
