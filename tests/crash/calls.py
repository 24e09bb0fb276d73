"""A kill, an error or a short write at a system call of a run; what is there after it can be gone on from."""

import random
import shutil

from projects import difference
from report import Row
from small_run import CONFIG, EVERY_STEPS, SmallRun, ending, fork, prepare, run_in_child
from tracer import WRITES, check_permitted, trace, wait_for_tracer
from workers import run_trials

from stages.runs.layout import FINISHED_FILE

OTHER = CONFIG.model_copy(update={"seed": 1, "num_epochs": 3})


class Calls:
    """All that can go wrong in one run."""

    def __init__(self, folder):
        self.folder = folder
        prepare(folder)
        self.old = self._outputs_of_another()
        run = self._begin("untouched")
        self.calls = self._traced(run)[0]
        self.reference = run.outputs()
        self.cases = [(number, "kill") for number in range(len(self.calls))]
        for number, call in enumerate(self.calls):
            self.cases += [(number, error) for error in ("ENOSPC", "EIO")]
            if call.name in WRITES:
                self.cases.append((number, "short"))

    def _outputs_of_another(self):
        """What stands where the outputs belong, as after a run with other params."""
        run = SmallRun(self.folder / "old")
        run.begin()
        assert run_in_child(lambda: run.fit(OTHER))[0] == 0
        return run.outputs()

    def _begin(self, name):
        run = SmallRun(self.folder / name)
        shutil.rmtree(run.folder, ignore_errors=True)
        run.begin(self.old)
        return run

    def _traced(self, run, target=None, change=None):
        """The calls it made, its exit code, and what it said."""

        def action():
            wait_for_tracer()
            run.fit()

        pid, reading = fork(action)
        calls, status = trace(pid, run.folder, target, change)
        code, _, said = ending(pid, reading, status)
        return calls, code, said

    def drawn(self, count, draw):
        """Of *count* cases half are about the file that makes a checkpoint one."""
        near, far = [], []
        for index, (number, _) in enumerate(self.cases):
            (near if "trainer-" in self.calls[number].path else far).append(index)
        half = min(count // 2, len(near))
        return draw.sample(near, half) + draw.sample(far, min(count - half, len(far)))

    def trial(self, index):
        """Have case *index* happen, look at what is left, and go on."""
        number, change = self.cases[index]
        call = self.calls[number]
        run = self._begin(f"case-{index}")
        calls, code, said = self._traced(run, number, change)
        reached = len(calls) > number  # or not: what comes by the clock may come more seldom this time
        lost, wrong = self._wrong_store(run, change if reached else None)
        wrong = [self._wrong_ending(change if reached else None, code, said), wrong]
        ended, _, said = run_in_child(run.fit)
        if ended != 0:
            wrong.append(f"the run after it ended with {ended}: {said}")
        wrong.append(difference(run.outputs(), self.reference))
        finding = "; ".join(filter(None, wrong))
        if finding:
            where = str(call).replace(f"{run.folder.parent}/", "")
            finding = f"trial {index}, {change} at call {number}: {where}: {finding}"
        else:
            shutil.rmtree(run.folder)
        counted = {f"lost {lost} steps": 1} if reached and change == "kill" else {}
        return Row(f"a system call: {change}", finding, counted if reached else {"not reached": 1})

    def _wrong_ending(self, change, code, said):
        if change == "kill":
            return "" if code == -9 else f"it was to be killed and ended with {code} {said}"
        if change in ("short", None):
            return "" if code == 0 else f"a run that loses nothing ended with {code}: {said}"
        return "" if code == 0 or (code == 1 and said) else f"an error ended it with {code}: {said}"

    def _wrong_store(self, run, change):
        """How many steps are lost, and what of the store cannot be read."""
        done = run.counter.steps
        code, answer, said = run_in_child(run.newest_checkpoint)
        if code:
            return 0, f"nothing can be gone on from: {said}"
        steps, passed_over = answer
        lost = 0 if steps is None else max(done - steps, 0)
        if passed_over:
            return lost, f"not whole: {passed_over}"
        if change == "kill" and (lost > EVERY_STEPS or (steps is None and self._should_have(run, done))):
            return lost, f"{done} steps were done and {steps} of them kept"
        return lost, ""

    def _should_have(self, run, done):
        """Whether there must be something to go on from: not before anything was saved, nor at the end."""
        store = run.store()
        return done > EVERY_STEPS and store is not None and not (store / FINISHED_FILE).exists()


def run(asked, folder, until):
    """A row for each trial: all of them, or as many as are asked for, drawn."""
    check_permitted()
    calls = Calls(folder)
    indices = list(range(len(calls.cases)))
    if asked.count < len(indices):
        indices = calls.drawn(asked.count, random.Random(asked.seed))  # noqa: S311  no secret
    if asked.replay is not None:
        indices = [asked.replay]
    return run_trials(calls.trial, indices, asked.jobs, until)
