"""A simulated run in the default renderer, for tests in a terminal: ``python simulated_run.py --help``."""

import argparse
import math
import signal
import sys
import time

from stages import renderers
from stages.contracts.events import Progress, Shown
from stages.contracts.history import History, Split, Value

SHOWN = {
    "CPU Memory": Shown("Gb", numeric=False),
    "Accuracy": Shown("%"),
    "Loss": Shown(),
    "Iteration Speed": Shown("iter/sec"),
}
ITEMS = 64


class SimulatedRun:
    """A loop without training that calls a renderer in the order of the real loop."""

    def __init__(self, renderer, arguments):
        self.renderer = renderer
        self.arguments = arguments
        self.progress = Progress(arguments.epochs, shown=SHOWN)
        self.history = History()
        self.steps = 0

    def run(self):
        self.renderer.start(self.progress)
        try:
            for epoch in range(1, self.arguments.epochs + 1):
                self.progress.epoch = epoch
                self.run_split(Split.TRAIN, self.arguments.batches)
                self.run_split(Split.VALID, max(1, self.arguments.batches // 4))
                self.renderer.epoch_end(self.progress, self.history)
        finally:
            if not self.arguments.abandon:
                self.renderer.close()

    def run_split(self, split, batches):
        self.progress.split, self.progress.batches = split, batches
        for batch in range(1, batches + 1):
            self.steps += 1
            values = simulate_values(split, self.steps)
            self.progress.batch, self.progress.items = batch, batch * ITEMS
            self.progress.running = self.progress.latest = lambda values=values: values
            for name, value in values.items():
                self.renderer.log(split, self.progress.epoch, name, value)
            self.renderer.step(self.progress)
            self.check()
            time.sleep(self.arguments.pause)
        for name in ("Accuracy", "Loss"):
            self.history.add(Value(self.progress.epoch, split, name, values[name]))
        self.progress.telemetry[split] = {"Iteration Speed": values["Iteration Speed"]}

    def check(self):
        if self.progress.interrupter.should_stop():
            sys.exit(f"stopped: {self.progress.interrupter.message}")
        if self.steps == self.arguments.fail:
            raise RuntimeError("it broke")
        if self.steps == self.arguments.abandon:
            sys.exit("exited without close")


def simulate_values(split, step):
    noise = math.sin(step * step) * 0.1
    loss = math.exp(-step / 300) * (1 + noise) + (0.1 if split is Split.VALID else 0.05)
    return {
        "CPU Memory": 7.25,
        "Accuracy": 100 * math.exp(-loss),
        "Loss": loss,
        "Iteration Speed": 1234.5 + 100 * noise,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.01, help="Seconds between two steps.")
    parser.add_argument("--fail", type=int, help="Step that raises an exception.")
    parser.add_argument(
        "--abandon", type=int, help="Step at which the program exits without closing the renderer."
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("received SIGTERM"))
    SimulatedRun(renderers.default_renderer(), parser.parse_args()).run()
