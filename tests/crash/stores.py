"""Damage to a file of a finished or interrupted run store: reported or repaired, never published."""

import random
import re
import shutil
from functools import partial

from file_damage import counterpart, damage, files_below, kinds_of
from recovery import BLOCKED, RECOVERED, REFUSED, REMEDY, remove_within
from report import Row
from small_run import CONFIG, SmallRun, Stopping, prepare, run_in_child
from trial_projects import difference
from workers import run_trials

from stages.contracts.events import Interrupter
from stages.fit import fit
from stages.params.fit_params import FitContext

STOPPED_AT = 9
"""A step in the training of the second epoch, so there is a checkpoint of a step and one of an epoch."""
STARTS = ("finished", "interrupted", "finished")
OTHER = CONFIG.model_copy(update={"seed": 1})


class Stores:
    """A finished and an interrupted run, of which each trial damages a copy."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.seed = seed
        prepare(folder)
        self.runs = {name: SmallRun(folder / name) for name in ("finished", "interrupted", "other")}
        for run in self.runs.values():
            run.begin()
        for name, action, wanted in (
            ("finished", self.runs["finished"].fit, 0),
            ("interrupted", self._stop, 1),
            ("other", partial(self.runs["other"].fit, OTHER), 0),
        ):
            code, _, text = run_in_child(action)
            assert code == wanted, f"{name}: {text}"
        self.reference = self.runs["finished"].outputs()

    def _stop(self):
        interrupter = Interrupter()
        run = self.runs["interrupted"]
        fit(
            CONFIG,
            run.paths,
            FitContext(renderer=Stopping(interrupter, STOPPED_AT), interrupter=interrupter),
        )

    def trial(self, index):
        """Damage a file of a store, run fit, and return the row of the trial."""
        draw = random.Random(f"{self.seed} {index}")  # noqa: S311  not a secret
        start = STARTS[index % len(STARTS)]
        run = SmallRun(self.folder / f"store-{index}")
        shutil.copytree(self.runs[start].folder / ".runs", run.folder / ".runs")
        run.begin()
        name = self._draw_file(run, draw)
        path = run.folder / ".runs" / name
        kind = draw.choice(kinds_of(path))
        other = counterpart(path, self._elsewhere(run, name), draw)
        kind = damage(path, kind, draw, other)
        wrong, how = self._after_it(run)
        if wrong:
            wrong = f"trial {index}, {start}, {'/'.join(name.parts[1:]) or name} {kind}: {wrong}"
        else:
            shutil.rmtree(run.folder)
        return Row(f"{start}: {kind_of_file(name)}", wrong, {how: 1})

    def _draw_file(self, run, draw):
        """Draw a file of the store; each kind of file has the same probability."""
        names = files_below(run.folder / ".runs")
        kind = draw.choice(sorted({kind_of_file(name) for name in names}))
        return draw.choice([name for name in names if kind_of_file(name) == kind])

    def _elsewhere(self, run, name):
        """Return the same file in the store of another run."""
        other = self.runs["other"].store()
        return other.joinpath(*name.parts[1:]) if len(name.parts) > 1 else None

    def _after_it(self, run):
        """Return what is wrong, and how the run recovered."""
        code, _, text = run_in_child(run.fit)
        wrong = self._wrong_outputs(run, code, text)
        if code == 0:
            return wrong, RECOVERED
        if run_in_child(run.fit)[0] == 0:
            return wrong or difference(run.outputs(), self.reference), RECOVERED
        if not _apply_remedy(run, text) or (ending := run_in_child(run.fit))[0]:
            return f"{wrong or 'refused clearly'}, but blocked after its remedy: {text}", BLOCKED
        return wrong or ending[2] or difference(run.outputs(), self.reference), REFUSED

    def _wrong_outputs(self, run, code, text):
        """Return how the outputs differ from the reference; after a refusal, only those that exist."""
        outputs = run.outputs()
        if code == 0:
            return difference(outputs, self.reference)
        if code != 1 or not text:
            return f"it ended with {code}: {text[-600:]}"
        return difference(outputs, {name: self.reference.get(name) for name in outputs})


def kind_of_file(name):
    """Return the kind of the file *name*: its path without numbers."""
    inside = "/".join(name.parts[1:])
    return (
        re.sub(r"\d+", "N", inside) if inside else f"{name.suffix.strip('.') or name.name} next to the store"
    )


def _apply_remedy(run, text):
    """Remove the files that the message *text* names; return whether there were any."""
    for match in REMEDY.finditer(text):
        path = match["removed"] or match["deleted"]
        if path and remove_within(run.folder, path.rstrip(".,:;")):
            return True
    return False


def run(asked, folder, until):
    """Return a row for each trial."""
    stores = Stores(folder, asked.seed)
    indices = [asked.replay] if asked.replay is not None else list(range(asked.count))
    return run_trials(stores.trial, indices, asked.jobs, until)
