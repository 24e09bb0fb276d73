"""Faults at one system call of a run: a kill, an error or a short write. The next run must resume from it."""

import shutil

from report import Row
from small_run import CONFIG, SmallRun, fork, inspect_store, prepare, run_in_child, wait_for_result
from tracer import WRITES, check_permitted, trace, wait_for_tracer
from trial_projects import difference
from workers import run_sample

ERRORS = ("ENOSPC", "EIO", "EACCES", "ENFILE", "EXDEV")
MOVES = {"rename", "renameat", "renameat2"}
OTHER = CONFIG.model_copy(update={"seed": 1, "num_epochs": 3})


class Calls:
    """All faults that can be injected into one run."""

    def __init__(self, folder):
        self.folder = folder
        prepare(folder)
        self.old = self._outputs_of_another()
        run = self._begin("untouched")
        self.calls = self._trace_run(run)[0]
        self.reference = run.outputs()
        self.cases = [(number, "kill") for number in range(len(self.calls))]
        for number, call in enumerate(self.calls):
            self.cases += [(number, error) for error in ERRORS if error != "EXDEV" or call.name in MOVES]
            if call.name in WRITES:
                self.cases.append((number, "short"))

    def _outputs_of_another(self):
        """Return the outputs of a run with other params, which the trials must replace."""
        run = SmallRun(self.folder / "old")
        run.begin()
        assert run_in_child(lambda: run.fit(OTHER))[0] == 0
        return run.outputs()

    def _begin(self, name):
        run = SmallRun(self.folder / name)
        shutil.rmtree(run.folder, ignore_errors=True)
        run.begin(self.old)
        return run

    def _trace_run(self, run, target=None, change=None):
        """Return the calls of the run, its exit code and its message; *target* is changed."""

        def action():
            wait_for_tracer()
            run.fit()

        pid, reading = fork(action)
        calls, status = trace(pid, run.folder, target, change)
        code, _, text = wait_for_result(pid, reading, status)
        return calls, code, text

    def sample(self, count, draw):
        """Draw *count* cases, half of them at the trainer record, which completes a checkpoint."""
        near, far = [], []
        for index, (number, _) in enumerate(self.cases):
            (near if "trainer-" in self.calls[number].path else far).append(index)
        half = min(count // 2, len(near))
        return draw.sample(near, half) + draw.sample(far, min(count - half, len(far)))

    def trial(self, index):
        """Inject fault *index*, inspect the store, and resume the run."""
        number, change = self.cases[index]
        call = self.calls[number]
        run = self._begin(f"case-{index}")
        calls, code, text = self._trace_run(run, call, change)
        reached = call in calls  # calls that depend on the clock may be fewer this time
        lost, unreadable, unsaved = inspect_store(run)
        wrong = [self._wrong_ending(change if reached else None, code, text), unreadable]
        if reached and change == "kill":
            wrong.append(unsaved)
        if code == 0:
            wrong.append(difference(run.outputs(), self.reference) and "exit 0, but other outputs")
        wrong += run.resume(self.reference)
        finding = run.close(f"trial {index}, {change} at call {number}: {call}", wrong)
        counted = {f"lost {lost} steps": 1} if reached and change == "kill" else {}
        return Row(f"a system call: {change}", finding, counted if reached else {"not reached": 1})

    def _wrong_ending(self, change, code, text):
        if change == "kill":
            return "" if code == -9 else f"expected a kill, ended with {code}: {text}"
        if change in ("short", None):
            return "" if code == 0 else f"a run without an error ended with {code}: {text}"
        return "" if code == 0 or (code == 1 and text) else f"after an error it ended with {code}: {text}"


def run(asked, folder, until):
    """Return a row for each trial: all of them, or a sample of *asked.count*."""
    check_permitted()
    return run_sample(Calls(folder), asked, until)
