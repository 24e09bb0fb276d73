"""A run of `fit` with a few steps, in a fork of this process, which saves the start-up time."""

import gc
import json
import logging
import mmap
import os
import shutil
import signal
import struct
import sys
import traceback
from contextlib import suppress

import numpy as np
import torch
from trial_projects import difference

from stages import build_learner, data, fit, records, runs
from stages.contracts.errors import RunInterruptedError, StageError
from stages.learner.resume.checkpointing import find_newest_checkpoint
from stages.models.config import MlpConfig
from stages.params.build_learner_params import BuildLearnerConfig, BuildLearnerPaths
from stages.params.fit_params import FitConfig, FitContext, FitPaths
from stages.renderers import NoRenderer
from stages.runs.file_names import CHECKPOINT_FOLDER, STEP_FOLDER
from stages.runs.layout import FINISHED_FILE, RUNS_FOLDER, stores

EVERY_STEPS = 2
STEPS = 2 * (4 + 2)
"""The steps of both epochs and both splits."""
MAX_LOST_STEPS = 2 * EVERY_STEPS
"""An interval, and the steps while a checkpoint is written: the next save waits for it."""
CONFIG = FitConfig(
    num_epochs=2,
    batch_size=8,
    num_workers=0,
    num_threads=1,
    device="cpu",
    checkpoint_every_steps=EVERY_STEPS,
    max_unsaved_seconds=3600,
    telemetry=(),  # its files contain times, and are compared with those of other runs
)


class Counter(NoRenderer):
    """A renderer that counts steps in shared memory, which outlasts a killed process."""

    def __init__(self):
        self._memory = mmap.mmap(-1, 8)

    def step(self, progress):
        batches = 4 if progress.split.value == "valid" else 0
        self.steps = (progress.epoch - 1) * 6 + batches + progress.batch

    @property
    def steps(self):
        return struct.unpack("q", self._memory[:])[0]

    @steps.setter
    def steps(self, number):
        self._memory[:] = struct.pack("q", number)


class Stopping(Counter):
    """A renderer that interrupts the run after a number of steps."""

    def __init__(self, interrupter, number):
        super().__init__()
        self._interrupter = interrupter
        self._number = number

    def step(self, progress):
        super().step(progress)
        if self.steps == self._number:
            self._interrupter.stop("the trial")


class SmallRun:
    """A run in its own folder."""

    def __init__(self, folder):
        self.folder = folder
        self.paths = FitPaths(
            artifacts=folder / "artifacts",
            learner=folder.parent / "learner",
            data=folder.parent / "data",
            runs=folder / RUNS_FOLDER,
            **{name: folder / "artifacts" / name for name in ("checkpoint", "train", "valid", "plots")},
            metrics=folder / "artifacts" / "metrics.json",
            iterations=folder / "artifacts/plots/iterations",
            confusion=folder / "artifacts/plots/confusion.tsv",
        )
        self.counter = Counter()

    def resume(self, reference):
        """Run the same command again; return the differences from *reference* and the error, if any."""
        code, _, text = run_in_child(self.fit)
        ending = "" if code == 0 else f"the run after it ended with {code}: {text}"
        return [ending, difference(self.outputs(), reference)]

    def close(self, trial, wrong):
        """Return what is *wrong* after *trial* in one line; remove the folder if nothing is."""
        finding = "; ".join(filter(None, wrong))
        if not finding:
            shutil.rmtree(self.folder)
        return finding and f"{trial}: {finding}"

    def begin(self, old=None):
        """Create the folder, with the *old* outputs of another run."""
        for name, content in (old or {}).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.paths.artifacts.mkdir(exist_ok=True)

    def fit(self, config=CONFIG):
        """Run fit, or resume it."""
        fit.fit(config, self.paths, FitContext(renderer=self.counter))

    def outputs(self):
        """Return the published files, except for the log, which contains times."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.paths.artifacts.rglob("*"))
            if path.is_file() and path.name != "experiment.log"
        }

    def store(self):
        """Return the run store; None if there is none."""
        return next(iter(stores(self.paths.runs)), None)

    def newest_checkpoint(self):
        """Return the steps of the newest intact checkpoint, and the messages about damaged ones.

        The steps are None if there is no checkpoint, or if the run is finished.
        """
        store, listener = self.store(), Listener()
        if store is None or (store / FINISHED_FILE).exists():
            return None, listener.lines
        recorder = records.DefaultRecorder()
        folders = [runs.FileCheckpointer(store / name, recorder) for name in (CHECKPOINT_FOLDER, STEP_FOLDER)]
        logging.getLogger("stages").addHandler(listener)
        found = find_newest_checkpoint(*folders, last_epoch=CONFIG.num_epochs, identity=None)
        if found is None:
            return None, listener.lines
        place = found.trainer.get("place")
        if place is None:
            return found.trainer["epoch"] * 6, listener.lines
        steps = (place["epoch"] - 1) * 6 + (4 if place["split"] == "valid" else 0) + place["iteration"]
        return steps, listener.lines


def inspect_store(run):
    """Return how many steps are lost, what is unreadable, and what is wrong after a kill if they are many."""
    done = run.counter.steps
    code, answer, text = run_in_child(run.newest_checkpoint)
    if code:
        return 0, f"no run can resume from the store: {text}", ""
    steps, skipped = answer
    lost = 0 if steps is None else max(done - steps, 0)
    is_missing = steps is None and _should_have_checkpoint(run, done)
    unsaved = f"{done} steps were completed and {steps} of them saved"
    return (
        lost,
        f"not intact: {skipped}" if skipped else "",
        unsaved if is_missing or lost > MAX_LOST_STEPS else "",
    )


def _should_have_checkpoint(run, done):
    """Return whether the store must hold a checkpoint: not before the first one, nor at the end."""
    store = run.store()
    return done > MAX_LOST_STEPS and store is not None and not (store / FINISHED_FILE).exists()


class Listener(logging.Handler):
    """A handler that keeps the messages."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def prepare(folder):
    """Write the inputs of every run: the data and the learner."""
    torch.set_num_threads(1)
    draw = np.random.default_rng(7)
    inputs = draw.normal(size=(45, 4)).astype(np.float32)
    arrays = data.Arrays(inputs, inputs[:, :3].argmax(1))
    splits = data.Splits(
        *(data.Arrays(arrays.inputs[s], arrays.targets[s]) for s in (slice(30), slice(30, 45)))
    )
    data.write(folder / "data", data.prepare(splits))
    config = BuildLearnerConfig(model=MlpConfig(kind="mlp", hidden_sizes=(4,), dropout=0.3))
    paths = BuildLearnerPaths(dataset=folder / "data" / "dataset.json", learner=folder / "learner")
    ended, _, text = run_in_child(lambda: build_learner.build_learner(config, paths))
    assert ended == 0, text


def fork(action):
    """Start a child process that calls *action*; return its id and a pipe with the result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    gc.freeze()  # a collection would touch, and so copy, the memory that this process shares with its parent
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    code, answer = 0, None
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        answer = action()
    except (StageError, RunInterruptedError) as error:
        code, answer = 1, str(error)
    except BaseException:  # noqa: BLE001  the child must not continue as a second parent
        code, answer = 2, traceback.format_exc()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os.write(writing, json.dumps(answer, default=str).encode())
    os._exit(code)


def wait_for_result(pid, reading, status=None):
    """Return the exit code (negative for a signal), the result of *action*, and the error message."""
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    if status is None:
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    answer = json.loads(content) if content else None
    return (code, answer, "") if code == 0 else (code, None, answer or "")


def run_in_child(action):
    """Call *action* in a child; return exit code (1: `StageError`, 2: other error), result and message."""
    return wait_for_result(*fork(action))
