"""Descriptions of exceptions in the user's code by the user's frames: file, line, function and source.

Frames of this project and of installed packages are hidden.
"""

import inspect
import linecache
import re
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any

ROOT = Path(__file__).parents[2]
OWN = tuple(f"{ROOT / name}/" for name in ("stages", "pipeline"))
SHIPPED_MODELS = f"{ROOT / 'stages/models'}/"
MODEL_MACHINERY = ("__init__.py", "config.py", "factory.py", "steps.py")
STDLIB = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
INSTALLED = ("/site-packages/", "/dist-packages/", "torchinductor")
INTERACTIVE = ("<stdin>", "<ipython-input")
MAX_FRAMES = 6
MAX_CAUSES = 3
MAX_LINES = 20
MAX_LINE_LENGTH = 500

WORKER = re.compile(r"Caught (\S+) in DataLoader worker process \d+\.")
GROUP_BORDER = re.compile(r"^ *(\+[-+]+( \d+ -+| \.\.\. -+)?$|\| ?)", re.MULTILINE)
"""The borders that Python draws around the exceptions of a group."""
TRACEBACK = "Traceback (most recent call last):\n"
GROUP = f"Exception Group {TRACEBACK}"
FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True)
class Frame:
    """One line of a traceback."""

    path: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        place = f"{_shorten(self.path)}, line {self.line}"
        if self.function:
            place += f", in {self.function}"
        source = self.source or linecache.getline(self.path, self.line).strip()
        return f"{place}: {_cut(source)}" if source else place


def explain(error: BaseException) -> str:
    """Return the message of *error*, the user's frames, its notes, and the causes of *error*.

    The text is bounded, and its first line is ``Type: message``.
    """
    lines: list[str] = []
    for number, cause in enumerate(_chain(error)):
        notes = _limit_lines("\n".join(map(str, vars(cause).get("__notes__", ())))).splitlines()
        details = [*_format_frames(_frames(cause)), *map(str.strip, notes)]
        head = f"caused by {summary(cause)}" if number else summary(cause)
        lines += [head, *(f"  {line}" for line in details)]
    return "\n".join(lines)


def location(error: BaseException) -> str:
    """Return the innermost user frame that *error* passed, as lines to append, or an empty string."""
    frames = [frame for frame in _all_frames(error) if is_user_file(frame.path)]
    return f"\n  {frames[-1]}" if frames else ""


def user_frames(error: BaseException) -> list[Frame]:
    """Return the user's frames of *error*, or of the first of its causes that has some, outermost first."""
    return next((frames for cause in _chain(error) if (frames := _frames(cause))), [])


def summary(error: BaseException) -> str:
    """Return ``Type: message`` of *error*, at most `MAX_LINES` long, even if its ``__str__`` fails."""
    kind = type(error)
    if isinstance(error, SystemExit):
        return f"SystemExit: sys.exit({'' if error.code is None else repr(error.code)})"
    if worker := _worker_text(error):
        return f"{_worker_message(worker)} (in a worker process of the loader)"
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception as failure:  # noqa: BLE001  the user's own __str__
        text = f"<str() of it failed with {type(failure).__name__}>"
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    if isinstance(error, BaseExceptionGroup):
        text = "\n".join([text, *map(summary, error.exceptions)])
    return f"{name}: {_limit_lines(text)}" if text else name


def place_of(code: Any) -> str:
    """Return " (file, line N)" of the function or class *code*; empty if the user did not write it."""
    try:
        code = inspect.unwrap(code)
        path = inspect.getsourcefile(code) or ""
        line = code.__code__.co_firstlineno if inspect.isfunction(code) else inspect.getsourcelines(code)[1]
    except (TypeError, OSError, ValueError):
        return ""
    return f" ({_shorten(path)}, line {line})" if is_user_file(path) else ""


def is_user_file(path: str) -> bool:
    """Return whether *path* is neither of this project nor of an installed package nor of Python."""
    if path.startswith("<"):
        return path.startswith(INTERACTIVE)
    return not (path.startswith((*OWN, *STDLIB)) or any(part in path for part in INSTALLED))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error* and its causes, as Python prints them, but in the opposite order."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) <= MAX_CAUSES:
        seen.add(id(current))
        yield current
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)


def _frames(error: BaseException) -> list[Frame]:
    """Return the user's frames of *error* itself; of a shipped model's, if it has no others."""
    frames = _all_frames(error)
    return [frame for frame in frames if is_user_file(frame.path)] or [
        frame
        for frame in frames
        if frame.path.startswith(SHIPPED_MODELS) and not frame.path.endswith(MODEL_MACHINERY)
    ]


def _all_frames(error: BaseException) -> list[Frame]:
    frames = [
        Frame(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in walk_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(Frame(error.filename, error.lineno or 0, "", (error.text or "").strip()))
    return frames + _worker_frames(_worker_text(error))


def _worker_text(error: BaseException) -> str:
    """Return the text that torch passes on for an exception in a worker; empty for other exceptions.

    It is the argument of the same exception, unless that has a constructor or an attribute ``message`` of its
    own, so it is first searched in the function that raises the exception again.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "reraise"]
    for text in (*(frame.f_locals.get("msg") for frame in frames), *error.args[:1]):
        text = getattr(text, "msg", text)  # noqa: PLW2901  torch's text of a KeyError
        if isinstance(text, str) and WORKER.match(text) and TRACEBACK in text:
            return GROUP_BORDER.sub("", text)
    return ""


def _worker_frames(text: str) -> list[Frame]:
    """Return the frames of the last traceback in *text* that has frames of the user."""
    for block in reversed(text.split(TRACEBACK)[1:]):
        frames = [
            Frame(match["path"], int(match["line"]), match["function"]) for match in FRAME.finditer(block)
        ]
        if any(is_user_file(frame.path) for frame in frames):
            return frames
    return []


def _worker_message(text: str) -> str:
    """Return the messages in *text*, from `_worker_text`: of the last traceback, or of a group."""
    _, mark, group = text.rpartition(GROUP)
    if not mark:
        return _last_message(text.rpartition(TRACEBACK)[2])
    lines = [
        line for line in group.splitlines() if line.strip() and not line.startswith(("  ", TRACEBACK[:-1]))
    ]
    return _limit_lines("\n".join(lines))


def _last_message(block: str) -> str:
    """Return the message at the end of a traceback's text."""
    lines = block.rstrip().splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("  ")]
    return _limit_lines("\n".join(lines[ends[-1] + 1 if ends else 0 :]))


def _format_frames(frames: list[Frame]) -> Iterable[str]:
    """Return *frames* as text; only the first and the last ones of a deep recursion."""
    shown = list(map(str, frames))
    if len(frames) <= MAX_FRAMES:
        return shown
    return [*shown[:2], f"… {len(frames) - MAX_FRAMES:,} more frames", *shown[-(MAX_FRAMES - 2) :]]


def _limit_lines(text: str) -> str:
    lines = text.splitlines()
    shown = [_cut(line) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"… {len(lines) - MAX_LINES:,} more lines")
    return "\n  ".join(shown)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_LENGTH else f"{line[:MAX_LINE_LENGTH]}…"


def _shorten(path: str) -> str:
    """Return *path* relative to the current folder, or to the folder of ``stages``, if it lies below."""
    with suppress(ValueError, OSError):
        return str(Path(path).relative_to(Path.cwd()))
    with suppress(ValueError):
        return str(Path(path).relative_to(ROOT))
    return path
