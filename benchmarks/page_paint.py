"""The page of `learner compare --html` with many runs: its size, and when Chromium has painted it.

    python benchmarks/page_paint.py [--runs 300] [--epochs 1000]

Needs Chromium. The times count from the start of the navigation to the file; each is the median and the
largest of some rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from many_runs import ROOT, make_runs

sys.path.append(str(ROOT / "tests" / "shared"))

from chromium import Browser, find_chromium

ROUNDS = 7
OBSERVE = """
const times = {};
new MutationObserver(() => {
  if (document.querySelector("#runs tbody tr")) times.table ??= performance.now();
  if (document.querySelector("#curves svg")) times.curves ??= performance.now();
}).observe(document, { childList: true, subtree: true });
"""
"""A script that runs before those of the page."""
TIMES = """({
  paint: performance.getEntriesByName("first-contentful-paint").map((each) => each.startTime)[0],
  ...times,
})"""


def write_page(folder: Path, runs: int, epochs: int) -> Path:
    """Return the page of a project with *runs* experiments of *epochs* epochs, made in *folder*."""
    make_runs(folder, runs, epochs=epochs, batches=45)
    command = [sys.executable, "-m", "pipeline", "compare", "--html", "page.html"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)  # noqa: S603  this Python
    return folder / "page.html"


def measure(page: Path, profile: Path) -> list[dict[str, float]]:
    """Return the times of each round in milliseconds: first paint, table complete, first curves."""
    browser = Browser(find_chromium(), profile)
    try:
        browser.resize(1400)
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=OBSERVE)
        found = []
        for _ in range(ROUNDS):
            browser.open(page)
            browser.wait('typeof times !== "undefined" && times.curves')
            browser.wait('performance.getEntriesByName("first-contentful-paint").length')
            found.append(browser.run(TIMES))
            browser.open("about:blank")
            browser.wait('location.href === "about:blank"')
        return found
    finally:
        browser.close()


def main() -> None:
    """Print the size and the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    if find_chromium() is None:
        sys.exit("Chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        page = write_page(Path(folder, "project"), options.runs, options.epochs)
        print(f"{options.runs} runs of {options.epochs} epochs: {page.stat().st_size / 1e6:.1f} MB, limit 8")
        times = measure(page, Path(folder, "profile"))
    for name in ("paint", "table", "curves"):
        values = [each[name] / 1000 for each in times]
        print(f"{name:<8} median {statistics.median(values):.2f} s, largest {max(values):.2f} s, limit 2")


if __name__ == "__main__":
    main()
