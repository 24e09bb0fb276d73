"""Write the reviews, a CSV file of texts and their classes. An edit reruns the pipeline."""

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np

FILE = Path("data/reviews.csv")
COUNT = 1000
SEED = 0
THINGS = ("screen", "battery", "case", "camera", "sound", "keyboard")
WORDS = {
    True: ("good", "pleasant", "fast", "great", "solid", "clear"),
    False: ("bad", "annoying", "slow", "awful", "weak", "noisy"),
}
"""Positive and negative words; `not` before a word reverses it."""
CLASSES = ("positive", "negative", "mixed")


def draw_clause(draws: np.random.Generator, *, is_positive: bool) -> str:
    """Return a clause about one thing."""
    is_negated = draws.random() < 0.4
    word = draws.choice(WORDS[is_positive is not is_negated])
    return f"the {draws.choice(THINGS)} is {'not ' * is_negated}{'very ' * (draws.random() < 0.4)}{word}"


def draw_review(draws: np.random.Generator) -> dict[str, str]:
    """Return a text of one to four clauses; a mixed one has a positive and a negative clause."""
    name = str(draws.choice(CLASSES))
    signs = [name == "positive"] * int(draws.integers(1, 5))
    if name == "mixed":
        signs = [True, False] if draws.random() < 0.5 else [False, True]
        signs += [bool(sign) for sign in draws.random(draws.integers(0, 3)) < 0.5]
    text = ("honestly , " * (draws.random() < 0.2)) + draw_clause(draws, is_positive=signs[0])
    for before, sign in pairwise(signs):
        text += f" {'and' if sign is before else 'but'} {draw_clause(draws, is_positive=sign)}"
    return {"label": name, "text": text}


def make_reviews(file: Path, count: int = COUNT) -> None:
    """Write *count* reviews to *file*: the same ones each time, because of `SEED`."""
    draws = np.random.default_rng(SEED)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, ["label", "text"])
        writer.writeheader()
        writer.writerows(draw_review(draws) for _ in range(count))


if __name__ == "__main__":
    make_reviews(FILE)
