"""A changed byte in a checkpoint: the run reports it and resumes from the previous checkpoint."""

import random
import shutil

from report import Row
from small_run import CONFIG, SmallRun, Stopping, prepare, run_in_child
from trial_projects import difference
from workers import run_trials

from stages.contracts.events import Interrupter
from stages.fit import fit
from stages.params.fit_params import FitContext
from stages.runs.file_names import (
    CHECKPOINT_FOLDER,
    STEP_FOLDER,
    TRAINER,
    files_of,
    list_epochs,
)

THREE_EPOCHS = CONFIG.model_copy(update={"num_epochs": 3})
STOPPED_AT = 15
"""A step of the third epoch, so there is a checkpoint of that step and one of each epoch before it."""
STEPS = {STEP_FOLDER: 12, CHECKPOINT_FOLDER: 6}
"""The steps of the checkpoint before the newest one, if the newest is of a step or of an epoch."""
RERUN_EVERY, ALL_EVERY = 25, 50


class Corruption:
    """An interrupted run, of which each trial has a copy."""

    def __init__(self, folder):
        self.folder = folder
        prepare(folder)
        untouched, self.run = SmallRun(folder / "untouched"), SmallRun(folder / "stopped")
        untouched.begin()
        assert run_in_child(lambda: untouched.fit(THREE_EPOCHS))[0] == 0
        self.reference = untouched.outputs()
        self.run.begin()
        code, _, text = run_in_child(self._stop)
        assert code == 1, text
        folders = {kind: self.run.store() / kind for kind in STEPS}
        files = {kind: list(files_of(folder, list_epochs(folder)[-1])) for kind, folder in folders.items()}
        self.bytes = [
            (kind, path.name, offset)
            for kind, paths in files.items()
            for path in paths
            for offset in range(path.stat().st_size)
        ]

    def _stop(self):
        interrupter = Interrupter()
        fit(
            THREE_EPOCHS,
            self.run.paths,
            FitContext(renderer=Stopping(interrupter, STOPPED_AT), interrupter=interrupter),
        )

    def trial(self, index):
        """Change byte *index*; in some trials resume the run, or damage all other checkpoints too."""
        kind, name, offset = self.bytes[index]
        run = SmallRun(self.folder / f"byte-{index}")
        shutil.copytree(self.run.folder, run.folder)
        if kind == CHECKPOINT_FOLDER:
            shutil.rmtree(run.store() / STEP_FOLDER)
        _change_byte(run.store() / kind / name, offset, index)
        if index % ALL_EVERY == 0:
            return self._row("all damaged: refused", index, self._check_refused(run, index), run)
        wrong, is_same = self._check_skipped(run, kind, name)
        if is_same and not wrong:
            return self._row(f"a byte of {name.partition('-')[0]}: without effect", index, "", run)
        if index % RERUN_EVERY == 0 and not wrong:
            ended, _, text = run_in_child(lambda: run.fit(THREE_EPOCHS))
            wrong = text if ended else difference(run.outputs(), self.reference)
        return self._row(f"a byte of {name.partition('-')[0]}: skipped", index, wrong, run)

    def _row(self, kind, index, wrong, run):
        shutil.rmtree(run.folder)
        return Row(kind, f"trial {index}, {self.bytes[index]}: {wrong}" if wrong else "")

    def _check_skipped(self, run, kind, name):
        """Return what is wrong, and whether the changed byte has no effect on the checkpoint."""
        steps, text = run.newest_checkpoint()
        if steps == STEPS[kind] and len(text) == 1 and "Passing over" in text[0]:
            return "", False
        original = STOPPED_AT if kind == STEP_FOLDER else 12
        if steps == original and not text and name.startswith("trainer"):
            return "", True
        return f"resumes after {steps} steps, with the messages {text}", False

    def _check_refused(self, run, index):
        """Damage all checkpoints; return what is wrong if the run starts over or changes a file."""
        folders = {TRAINER: run.store() / CHECKPOINT_FOLDER, "optim": run.store() / STEP_FOLDER}
        broken = [
            path
            for part, folder in folders.items()
            for epoch in list_epochs(folder)
            for path in files_of(folder, epoch, part=part)
        ]
        for path in broken:
            _change_byte(path, path.stat().st_size // 2, index)
        before = {path: path.read_bytes() for path in run.store().glob("*/*-*.*")}
        code, _, text = run_in_child(lambda: run.fit(THREE_EPOCHS))
        if code != 1 or "none intact" not in text:
            return f"it ended with {code}: {text}"
        after = {path: path.read_bytes() for path in run.store().glob("*/*-*.*")}
        return difference(after, before)


def _change_byte(path, offset, seed):
    content = bytearray(path.read_bytes())
    content[offset] ^= random.Random(f"{seed} {offset}").randrange(1, 256)  # noqa: S311  no secret
    path.write_bytes(content)


def run(asked, folder, until):
    """Return a row for each trial: all bytes, or a sample of *asked.count*."""
    corruption = Corruption(folder)
    indices = list(range(len(corruption.bytes)))
    if asked.count < len(indices):
        indices = random.Random(asked.seed).sample(indices, asked.count)  # noqa: S311  no secret
    if asked.replay is not None:
        indices = [asked.replay]
    return run_trials(corruption.trial, indices, asked.jobs, until)
