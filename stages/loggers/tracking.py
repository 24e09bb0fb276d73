"""Experiment trackers, such as MLflow, which receive the values of a run in a process of their own.

The process of the run only appends lines to a file. Another process reads them and calls the tracker, so
neither a slow server nor the threads, signal handlers and random numbers of a client affect the run.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from stages.contracts import plugins
from stages.contracts.deliveries import EVENTS_FILE, SENT_FILE, has_unsent_events, read_sent
from stages.contracts.events import NoRenderer, Progress
from stages.contracts.history import History, Split
from stages.contracts.text import hide_passwords, to_json
from stages.loggers.line_file import LineFile
from stages.loggers.log_files import SAMPLE_FILES
from stages.system.files import write_text
from stages.system.processes import module_command

OUTPUT_FILE = "tracker.log"
"""The output of the tracker's process, with its error if it failed."""
ARGUMENTS_VARIABLE = "LEARNER_TRACKER_ARGUMENTS"
"""Environment variable with the arguments of the tracker, because other users can read a command line."""
POLL_SECONDS = 0.2
MAX_EVENTS = 256
"""The most events in one call of a tracker."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunDescription:
    """The data about a run that a tracker receives before its values."""

    name: str = ""
    """The key of the run."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """The sections of ``params.yaml`` with all defaults."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """For example ``git.commit``, the commit that the run started from."""


@dataclass(frozen=True)
class Point:
    """The values of metrics at one step."""

    step: int
    """The epoch, counted from 1; for the mean of an epoch so far, the batch, counted through all epochs."""
    values: Mapping[str, float]
    """The value of each metric, named ``train/Loss``, ``telemetry/train/…`` or ``running/train/…``."""
    time: float
    """Seconds since 1970."""


class Tracker(Protocol):
    """A client of a tracking service; it is built in a process of its own, with *directory* for its files.

    It may have the attributes of `TrackerOptions`.
    """

    def start(self, run: RunDescription) -> None:
        """Start a run, or resume the one that an earlier process started."""

    def log(self, points: Sequence[Point]) -> None:
        """Send *points*; after a failure they are sent again when the run is resumed."""

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """End the run: *status* is ``finished``, ``failed`` or ``stopped``.

        *summary* has the last value of each metric, and the number of epochs.
        """


@dataclass(frozen=True)
class TrackerOptions(plugins.OptionalAttributes):
    """The optional attributes of a tracker, and their defaults."""

    starts_empty: bool = False
    """True after `start` if the run has none of the points that an earlier process has sent: then the tracker
    receives all again."""
    upload: Callable[[], None] = lambda: None
    """Send what the tracker has stored on this machine."""
    log_samples: Callable[[int, Mapping[str, Path]], None] = lambda _, __: None
    """Send the files of samples, PNG or text, of an epoch, by a name such as ``valid/masks-1``."""


class TrackerProcess(NoRenderer):
    """A renderer that passes the values of a run to a `Tracker` in another process.

    *kind* is the import path of the tracker, which is built with *arguments* and *directory*. The end of the
    run waits for the tracker up to *wait_seconds*. If the tracker fails, the run continues: the values stay
    in ``events.jsonl``, and are sent when the run is resumed. The samples in the artifact directory
    *samples*, if it is given, are sent to a tracker with a method ``log_samples``.
    """

    def __init__(
        self,
        kind: str,
        directory: Path,
        run: RunDescription,
        *,
        arguments: Mapping[str, Any] | None = None,
        interval_seconds: float = 10.0,
        wait_seconds: float = 60.0,
        samples: Path | None = None,
    ) -> None:
        self.directory = directory
        self._samples = samples
        self._kind = kind
        self._arguments = dict(arguments or {})
        self._run = run
        self._interval = interval_seconds
        self._wait = wait_seconds
        self._due = 0.0
        self._batch = 0
        """The last batch of training in this epoch, also if an earlier process has trained it."""
        self._finished_batches = 0
        """The batches of training in the epochs before."""
        self._file: LineFile | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._progress: Progress | None = None
        self._summary: dict[str, Any] = {"epochs": 0}

    def start(self, progress: Progress) -> None:
        """Start the tracker's process."""
        self._progress = progress
        self._due = time.monotonic() + self._interval
        events = read_events(self.directory / EVENTS_FILE)
        for event in select_epochs(events, progress.first_epoch):
            self._summary |= select_metrics(event["point"]["values"]) | {"epochs": event["point"]["step"]}
            self._finished_batches = event.get("batches", 0)
        self._batch = count_trained(events, progress.first_epoch)
        self._file = LineFile(self.directory / EVENTS_FILE, "a", flush_seconds=0.0)
        self._file.write("\n")  # ends a line that a killed process began
        self._write({"run": asdict(self._run)})
        command = module_command(__name__, self._kind, str(self.directory))
        with (self.directory / OUTPUT_FILE).open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter
                command,
                stdin=subprocess.PIPE,  # closed when this process ends, however it ends
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the run, which then ends the tracker
                env=_environment(self._arguments),
            )

    def step(self, progress: Progress) -> None:
        """Send the means of the epoch so far, once per *interval_seconds* in training."""
        if progress.split is not Split.TRAIN:
            if progress.batch == 1:
                self._write({"trained": progress.epoch, "batches": self._batch})
            return
        self._batch = progress.batch
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._interval
            # 0 batches are those of a loader without a length
            step = ((progress.epoch - 1) * progress.batches or self._finished_batches) + progress.batch
            running = {f"running/train/{name}": value for name, value in progress.running().items()}
            self._write({"point": asdict(Point(step, running, time.time()))})

    def epoch_end(self, progress: Progress, history: History) -> None:
        """Send the values of the epoch."""
        values = {f"{value.split}/{value.metric}": value.value for value in history.at(progress.epoch)}
        values |= {
            f"telemetry/{split}/{name}": value
            for split, measured in progress.telemetry.items()
            for name, value in measured.items()
        }
        self._finished_batches += self._batch
        point = asdict(Point(progress.epoch, values, time.time()))
        self._write({"point": point, "batches": self._finished_batches})
        if files := list_samples(self._samples, progress.epoch):
            self._write({"samples": {"epoch": progress.epoch, "files": files}})
        self._summary = summarize(history)

    def close(self) -> None:
        """End the run of the tracker, and wait for its process."""
        if self._file is None or self._process is None:
            return
        stopped = self._progress is not None and self._progress.interrupter.should_stop()
        status = "failed" if sys.exc_info()[0] else "stopped" if stopped else "finished"
        self._write({"status": status, "summary": self._summary})
        self._file.close()
        self._file = None
        with suppress(OSError, subprocess.TimeoutExpired):
            self._process.stdin.close()  # type: ignore[union-attr]  # a pipe
            self._process.wait(self._wait)
        code = self._process.returncode
        if code != 0:
            self._process.kill()
            self._process.wait()
            log.warning(
                "the tracker %s %s, and has not received all values of the run. They are in %s, and the "
                "error is in %s. `learner runs sync` sends them",
                self._kind,
                f"took more than {self._wait:g} seconds" if code is None else f"ended with {code}",
                self.directory / EVENTS_FILE,
                self.directory / OUTPUT_FILE,
            )

    def _write(self, event: Mapping[str, Any]) -> None:
        if self._file:
            self._file.write(hide_passwords(json.dumps(event)) + "\n")


def list_samples(directory: Path | None, epoch: int) -> dict[str, str]:
    """Return the absolute paths of the samples of *epoch* in the artifact directory *directory*, by name."""
    folders = [] if directory is None else [directory / split / f"epoch-{epoch}" for split in Split]
    paths = [path for folder in folders for pattern in SAMPLE_FILES for path in sorted(folder.glob(pattern))]
    return {f"{path.parts[-3]}/{path.stem}": str(path.absolute()) for path in paths}


def summarize(history: History) -> dict[str, Any]:
    """Return the last value of each metric by its split and name, and the number of epochs."""
    last = {f"{split}/{metric}": series.values[-1] for (split, metric), series in history.columns().items()}
    return {"epochs": history.epochs, **last}


def select_metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return those of *values* that are neither telemetry nor means of an epoch so far."""
    return {name: value for name, value in values.items() if name.partition("/")[0] in list(Split)}


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events in the file *path*; none if it cannot be read."""
    with suppress(OSError), path.open("rb") as lines:
        return [*map(_parse, lines)]
    return []


def select_epochs(events: Sequence[Mapping[str, Any]], first_epoch: int) -> list[Mapping[str, Any]]:
    """Return those of *events* with the values of an epoch before *first_epoch*."""
    with suppress(KeyError, TypeError):
        return [
            event
            for event in events
            if "point" in event
            and event["point"]["step"] < first_epoch
            and select_metrics(event["point"]["values"])
        ]
    return []


def count_trained(events: Sequence[Mapping[str, Any]], epoch: int) -> int:
    """Return the batches of training in *epoch* if a process has begun its validation, else 0."""
    with suppress(KeyError, TypeError):
        return int(next((event["batches"] for event in events if event.get("trained") == epoch), 0))
    return 0


def send_pending(kind: str, directory: Path, arguments: Mapping[str, Any]) -> str:
    """Send what the tracker *kind* has not received of the run in *directory*, and return the error, if any.

    The tracker is built with *arguments* in another process, as by `TrackerProcess`.
    """
    with (directory / OUTPUT_FILE).open("wb") as output:
        done = subprocess.run(  # noqa: S603  this interpreter
            module_command(__name__, kind, str(directory), "upload"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
            env=_environment(arguments),
        )
    lines = (directory / OUTPUT_FILE).read_text(errors="replace").split("\n")
    return "" if done.returncode == 0 else next(filter(str.strip, reversed(lines)), "no output")


def _environment(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of the tracker's process."""
    search_path = os.pathsep.join(filter(None, sys.path))
    return os.environ | {"PYTHONPATH": search_path, ARGUMENTS_VARIABLE: to_json(arguments)}


def deliver(tracker: Tracker, directory: Path, parent: IO[bytes]) -> None:
    """Pass the events in *directory* to *tracker* until the run ends or *parent* is closed.

    The end of an earlier process of the run is not one of the run.
    """
    with (directory / EVENTS_FILE).open("rb") as events:
        runs = [line["run"] for line in map(_parse, events) if "run" in line]
        tracker.start(RunDescription(**runs[-1]))  # each process of a run adds one, which may differ
        if TrackerOptions.of(tracker).starts_empty:
            write_text(directory / SENT_FILE, "0")
        events.seek(read_sent(directory))
        for lines in _follow(events, parent):
            points = [Point(**line["point"]) for line in lines if "point" in line]
            if points:
                tracker.log(points)
            for samples in (line["samples"] for line in lines if "samples" in line):
                files = {name: Path(path) for name, path in samples["files"].items() if Path(path).exists()}
                TrackerOptions.of(tracker).log_samples(samples["epoch"], files)
            if "status" in lines[-1] and events.tell() == os.fstat(events.fileno()).st_size:
                tracker.finish(lines[-1]["status"], lines[-1]["summary"])
            write_text(directory / SENT_FILE, json.dumps(events.tell()))


def _follow(events: IO[bytes], parent: IO[bytes]) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of a file that another process appends to, until that process ends."""
    os.set_blocking(parent.fileno(), False)
    ended = False
    while True:
        lines = _read_lines(events)
        if lines:
            yield lines
        elif ended:
            return
        else:
            ended = parent.read() == b""  # None while the pipe is open
            time.sleep(0 if ended else POLL_SECONDS)


def _read_lines(events: IO[bytes]) -> list[dict[str, Any]]:
    """Return up to `MAX_EVENTS` complete lines; stop after the end of a run."""
    lines: list[dict[str, Any]] = []
    while len(lines) < MAX_EVENTS:
        start = events.tell()
        line = events.readline()
        if not line.endswith(b"\n"):
            events.seek(start)
            break
        lines.append(_parse(line))
        if "status" in lines[-1]:
            break
    return lines


def _parse(line: bytes) -> dict[str, Any]:
    """Return the event in *line*; an empty one for a line that a killed process did not complete."""
    with suppress(ValueError):
        return dict(json.loads(line))
    return {}


def main(kind: str, directory: str, upload: str = "") -> None:
    """Build the tracker *kind* and pass it the events in *directory*; with *upload*, send stored runs too."""
    maker, folder = plugins.find("logger", kind, {}), Path(directory)
    arguments = json.loads(os.environ[ARGUMENTS_VARIABLE])
    tracker = plugins.build("logger", kind, maker, {"directory": folder, **arguments})
    if not upload or has_unsent_events(folder):
        deliver(tracker, folder, sys.stdin.buffer)
    if upload:
        TrackerOptions.of(tracker).upload()


if __name__ == "__main__":
    main(*sys.argv[1:])
