"""Write the table of houses, a CSV file. An edit reruns the pipeline."""

import csv
from pathlib import Path

import numpy as np

FILE = Path("data/houses.csv")
COUNT = 600
SEED = 0
DISTRICTS = {"inland": (0.3, 80.0), "ocean": (0.8, 15.0), "bay": (1.4, 12.0)}
"""The price of each district, and its mean distance to the coast in km."""
MISSING = 0.02
"""The share of missing values among the districts, and among the ages."""


def draw_house(draws: np.random.Generator) -> dict[str, str]:
    """Return a row; the price depends on all other columns, with noise of a standard deviation of 0.15."""
    district = str(draws.choice(list(DISTRICTS)))
    base, distance = DISTRICTS[district]
    rooms, age = draws.normal(5, 1.2), draws.integers(0, 60)
    income, coast = draws.uniform(1.5, 7.5), draws.exponential(distance)
    price = base + 0.3 * income + 0.1 * (rooms - 5) - 0.005 * age - 0.002 * coast + draws.normal(0, 0.15)
    return {
        "district": "" if draws.random() < MISSING else district,
        "rooms": f"{max(rooms, 1):.1f}",
        "age": "" if draws.random() < MISSING else str(age),
        "income": f"{income:.2f}",
        "coast_km": f"{coast:.1f}",
        "price": f"{price:.2f}",
    }


def make_houses(file: Path, count: int = COUNT) -> None:
    """Write *count* rows to *file*: the same ones each time, because of `SEED`."""
    draws = np.random.default_rng(SEED)
    rows = [draw_house(draws) for _ in range(count)]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    make_houses(FILE)
