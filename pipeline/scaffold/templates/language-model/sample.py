"""Print a text that the trained model generates: `python sample.py "the cat"`."""

import sys
from pathlib import Path

import torch

from stages import data
from stages.learner import LearnerSpec
from stages.records import DefaultRecorder, load_file


def main(start: str, count: int = 300) -> None:
    """Print *start* and *count* more characters."""
    characters = tuple(data.read_info(Path("data/prepared/dataset.json")).class_names or ())
    if unknown := sorted(set(start) - set(characters)):
        sys.exit(f"error: {start!r} has characters that the text lacks: {' '.join(unknown)}")
    model, _, _ = LearnerSpec.read(Path("artifacts/learner")).build(0)
    load_file(model, "artifacts/model", DefaultRecorder()).eval()
    ids = torch.tensor([[characters.index(each) for each in start]])
    print("".join(characters[each] for each in model.generate(ids, count)[0].tolist()))


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "the ")
