"""A comparison that follows the runs, as a page on loopback, for ``learner compare --watch``.

Nothing is read while no browser asks. When one does, a few small files show whether a run has changed, and
only then the changed runs are read. A run at work changes at every heartbeat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from pipeline.comparison.collection import PlotData, PlotReader, direction_of, summarize
from pipeline.comparison.page import PageContent, build_content, build_watched_page
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, ViewOptions
from pipeline.project.git import run_git
from pipeline.project.params import read_params
from pipeline.project.paths import runs_root
from pipeline.project.revisions.files import TRACKED, LocalCache, RevisionFiles, open_cache, read_runs
from pipeline.project.yaml_files import read_yaml
from stages.contracts.config import flatten
from stages.contracts.errors import ParamsError, StageError
from stages.loggers.log_files import read_history
from stages.runs.key import plain
from stages.runs.layout import stores
from stages.runs.overview import Beat, Run, State, read_run
from stages.system.processes import working_directory

HOST = "127.0.0.1"
PARAMS = "params.yaml"


class Watcher:
    """The content of the page for *revs*.

    None stands for the workspace, all experiments on HEAD, and the runs at work.
    """

    def __init__(self, revs: Sequence[str] | None, view: ViewOptions) -> None:
        self._revs = revs
        self._view = view
        self._lock = Lock()
        self._known: dict[str | None, tuple[RunSummary, PlotData]] = {}
        """SHA to run; a commit whose outputs are all cached changes only if the cache loses an object."""
        self._cache: LocalCache | None = None
        self._objects: set[str] = set()
        """The hashes of all objects in the cache when the runs were read."""
        self._live: dict[str, RunSummary] = {}
        """Key to run at work, with its last values while a line of its logs is incomplete."""
        self._state: Any = None
        self._found: list[tuple[RunSummary, PlotData]] = []
        self._beats: list[Beat | None] = []
        self._content: PageContent | None = None

    def read(self) -> PageContent:
        """Return the current content. Raises `StageError` if the files of a run cannot be read."""
        with self._lock:
            runs = map(read_run, stores(runs_root())) if self._revs is None else ()
            running = [run for run in runs if run.state is State.RUNNING]
            self._cache = self._cache or open_cache()
            state = (_project_state(), self._cache.read_times(), [run.key for run in running])
            if state != self._state:
                self._content = None
                objects = self._cache.list_objects()
                if not self._objects <= objects:  # the cache has lost one, and a known run may have changed
                    self._known.clear()
                self._objects = objects
                self._found = self._read(read_runs(self._revs))
                self._state = state
            beats = [run.beat for run in running]
            if self._content is None or beats != self._beats:
                self._content = self._build(running)
                self._beats = beats
            return self._content

    def _build(self, running: Sequence[Run]) -> PageContent:
        read = {run.key: read_live_run(run) or self._live.get(run.key) for run in running}
        self._live = {key: run for key, run in read.items() if run is not None}
        comparison = Comparison((*(run for run, _ in self._found), *self._live.values()))
        return build_content(comparison, {run.name: data for run, data in self._found}, self._view)

    def _read(self, revisions: Mapping[str, RevisionFiles]) -> list[tuple[RunSummary, PlotData]]:
        new = {
            name: files
            for name, files in revisions.items()
            if files.sha not in self._known or files.collision
        }
        plots = PlotReader(new)
        changed = {run.name: (run, plots[run.name]) for run in summarize(new).runs}
        read = []
        for name, files in revisions.items():
            run, data = changed[name] if name in changed else self._known[files.sha]
            if run.cached and files.sha and not files.collision:
                self._known[files.sha] = run, data
            read.append((replace(run, name=name), data))
        return read


def read_live_run(run: Run) -> RunSummary | None:
    """Return the run *run* that is at work, with the values until now; None if they cannot be read.

    The params are those in the folder of its process, except for those that were edited after the run began:
    they have the values of its key. The epoch in progress is neither the best nor the last.
    """
    folder = working_directory(run.owner.pid) if run.owner else None
    if folder is None or run.beat is None:
        return None
    try:
        params = read_params_of(Path(folder, PARAMS), run.entries.get("params", {}))
        history = read_history(run.path)
    except StageError:
        return None  # the process has ended, or is writing a line of a log
    curves = [
        MetricCurve(
            split.value,
            metric,
            dict(zip(series.epochs, series.values, strict=True)),
            direction_of(metric),
            run.beat.epoch if split.value == run.beat.split else None,
        )
        for (split, metric), series in history.columns().items()
    ]
    return RunSummary(
        name=f"at work {run.key}",
        sha=None,
        params=params,
        metrics={curve.name: curve for curve in curves},
        epochs=history.epochs or None,
        notes=(f"at work in epoch {run.beat.epoch} of {run.beat.epochs}; that epoch has the mean until now",),
    )


def read_params_of(path: Path, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params in *path*, as dvc.lock has them, with those of fit that a key has *recorded*.

    A key has every param with its default, in one form, and dvc.lock those in the file, as they are written.
    """
    params = flatten(read_yaml(path))
    before, now = flatten({"fit": recorded}), flatten({"fit": plain(read_params(path).fit.key_params())})
    return params | {name: value for name, value in before.items() if now.get(name) != value}


def build_server(watcher: Watcher, port: int) -> "Server":
    """Return a server of the page on loopback; *port* 0 is any free port.

    Raises `ParamsError` if the port cannot be used.
    """
    try:
        return Server((HOST, port), watcher)
    except OSError as error:
        raise ParamsError(
            f"port {port} cannot be used: {error.strerror}. Name another with --port, or leave it out"
        ) from error


class Server(ThreadingHTTPServer):
    """The server of the page."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], watcher: Watcher) -> None:
        self.watcher = watcher
        super().__init__(address, _Handler)

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error of a connection that the browser has closed."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answer with the page, or with its data if that is not the data that the browser has."""
        port = self.server.server_port
        if self.headers.get("Host") not in (
            f"{HOST}:{port}",
            f"localhost:{port}",
        ):  # another site's name for it
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "unknown host")
        if self.path not in ("/", "/data.json"):
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "not found")
        try:
            content = self.server.watcher.read()
        except StageError as error:
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))
        if self.path == "/":
            return self._answer(HTTPStatus.OK, "text/html", build_watched_page(content))
        if self.headers.get("If-None-Match") == content.tag:
            return self._answer(HTTPStatus.NOT_MODIFIED, "application/json", "")
        return self._answer(HTTPStatus.OK, "application/json", content.json, content.tag)

    def _answer(self, status: HTTPStatus, kind: str, text: str, tag: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if tag:
            self.send_header("ETag", tag)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Print no line for each request."""


def _project_state() -> Any:
    """Return a value that changes with the revisions of git and with the tracked files of the workspace."""
    head = run_git(Path(), "rev-parse", "HEAD")
    refs = run_git(Path(), "for-each-ref", "--format=%(objectname) %(refname)")
    stats = [path.stat() if path.exists() else None for path in map(Path, TRACKED)]
    return head, refs, [stat and (stat.st_mtime_ns, stat.st_size) for stat in stats]
