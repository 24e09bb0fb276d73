"""A Prefect server that is killed, emptied or fails behind a proxy, under each way to start a run."""

import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass

from checkouts import wait_until
from prefect_servers import FAULTS, Api, Proxy, Server, running_server
from recovery import LEARNER
from report import Row
from trial_projects import templates
from waiting import LIMIT_SECONDS
from workers import run_trials

ENTRIES = ("run", "serve", "worker")
OUTAGES = ("kill", "empty", *FAULTS)
"""``kill`` starts the server again with its database, and ``empty`` another one with an empty database."""
RUN_SECONDS, OUTAGE_SECONDS = 20, 20
"""The longest time before an outage, and its longest duration."""


@dataclass(frozen=True)
class Plan:
    """A trial."""

    entry: str
    outage: str
    delay: float
    """The seconds from the start of the run to the outage."""
    duration: float


def plan(seed, index):
    """Return trial *index*."""
    draw = random.Random(f"servers {seed} {index}")  # noqa: S311  not a secret
    outage = draw.choice(OUTAGES)
    return Plan(
        ENTRIES[index % len(ENTRIES)], outage, draw.uniform(0, RUN_SECONDS), draw.uniform(1, OUTAGE_SECONDS)
    )


class ServerTrials:
    """Trials, each with its own project, server and proxy."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.seed = seed
        self.templates = templates(folder.parent)

    def trial(self, index):
        """Let the server fail during a run, run the stages again, and return the row of the trial."""
        planned = plan(self.seed, index)
        project = self.templates.start("training", self.folder / f"{index}")
        with ExitStack() as stack:
            wrong = "; ".join(filter(None, Trial(project, planned, stack).run(self.templates)))
        if wrong:
            wrong = (
                f"trial {index}, {planned}: {wrong}\n{project.output()[-1500:]}\n{project.output('again')}"
            )
        else:
            project.remove()
        return Row(f"{planned.entry}: {planned.outage}", wrong)


class Trial:
    """A run of which the server fails."""

    def __init__(self, project, planned, stack):
        self.project, self.planned, self.stack = project, planned, stack
        self.server = self._start_server("server")
        self.proxy = stack.enter_context(Proxy(self.server.address))
        self.api = Api(self.server.address)
        project.environment |= {
            "PREFECT_API_URL": self.proxy.address,
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
        }

    def _start_server(self, name):
        home = self.project.folder.with_name(f"{self.project.folder.name}-{name}")
        self.project.folders.append(home)
        home.mkdir()
        return self.stack.enter_context(running_server(home))

    def run(self, made):
        """Yield what is wrong; nothing of it is a finding if it is empty."""
        process = self._start()
        time.sleep(self.planned.delay)
        self._fail()
        if self.planned.entry == "run":
            code = process.wait(LIMIT_SECONDS)
            is_refused = code == 1 and "is unreachable (" in self.project.output()  # before it began
            yield f"it ended with {code}" if code and not is_refused else ""
        else:
            wait_until(lambda: self._is_idle(process))
            process.terminate()
            process.wait(LIMIT_SECONDS)
        text = self.project.output()
        yield "a traceback" if "Traceback" in text and self.planned.entry != "worker" else ""
        yield f"still running: {left}" if (left := self.project.orphans()) else ""
        again = self.project.start(*LEARNER, "run", log="again")
        yield f"the next run ended with {code}" if (code := again.wait(LIMIT_SECONDS)) else ""
        yield made.wrong(self.project, "learner run", "training")
        wait_until(lambda: not self._runs_in_progress())
        yield f"shown as in progress: {runs}" if (runs := self._runs_in_progress()) else ""

    def _start(self):
        """Start the run, and return the process of the command."""
        if self.planned.entry == "run":
            return self.project.start(*LEARNER, "run")
        if self.planned.entry == "serve":
            process = self.project.start(*LEARNER, "serve", "--name", "process", "--workspace")
            assert wait_until(lambda: "serving learner/" in self.project.output(), process)
        else:
            prefect = (sys.executable, "-m", "prefect", "--no-prompt")
            self.project.ok(*prefect, "work-pool", "create", "--type", "process", "learner")
            self.project.ok(*prefect, "deploy", "--all")
            process = self.project.start(*prefect, "worker", "start", "--pool", "learner")
        self.run_id = self.api.start("process", experiment=False)
        return process

    def _fail(self):
        """Let the server fail for the time that is planned."""
        is_proxied = self.planned.outage in FAULTS
        self.proxy.fail(self.planned.outage if is_proxied else "drop")
        if not is_proxied:
            self.server.process.kill()
            self.server.process.wait()
        time.sleep(self.planned.duration)
        if self.planned.outage == "kill":
            restarted = Server(self.server.log.parent)
            self.stack.callback(restarted.end)
            restarted.wait()
            self.api = Api(restarted.address)
        elif self.planned.outage == "empty":
            self.api = Api(self._start_server("empty").address)
        self.proxy.recover(self.api.address)

    def _is_idle(self, process):
        """Return whether the run has ended: in the API, or, if that has lost it, by its processes."""
        if self.planned.outage != "empty":
            return self.api.has_ended(self.run_id)
        return not any("prefect.engine" in line for line in self.project.processes().values())

    def _runs_in_progress(self):
        states = {"type": {"any_": ["PENDING", "RUNNING", "CANCELLING"]}}
        return [
            run["state_name"] for run in self.api.post("flow_runs/filter", {"flow_runs": {"state": states}})
        ]


def run(asked, folder, until):
    """Return a row for each trial."""
    indices = [asked.replay] if asked.replay is not None else list(range(asked.count))
    return run_trials(ServerTrials(folder, asked.seed).trial, indices, asked.jobs, until)
