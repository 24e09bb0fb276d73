"""Types of params: strict numbers, flags and strings with their bounds.

A value of one YAML type is never converted to another: ``true`` is not 1, and ``"12"`` is not 12. The one
exception is an integral float for an integer, because YAML reads ``1e3`` as a float.
"""

import math
import re
from collections.abc import Callable
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

OPTIONAL: Any = Field(default=None, exclude_if=lambda value: value is None)
"""The default of a param or a fact that files and keys lack unless it is set."""
DEVICE = re.compile(r"auto|all|cuda|(cpu|mps)(:0)?|cuda:\d{1,4}")
MAX_COUNT = 10**9
"""Limit of epochs, batches and samples, which every record format can store."""
MAX_STEPS = 2**53
"""Limit of steps and bytes: a float64, in which schedules are computed, represents all integers below."""
MAX_UNITS = 2**20
"""Limit of the units in a layer: the weights between two layers of this size take 4 TB."""
MAX_PROCESSES = 1024
MAX_PREFETCH = 1024
"""Limit of threads and worker processes. OpenMP fails to start 16,000 threads, and crashes the process with a
segmentation fault from 60,000 on."""
MAX_SECONDS = 10**9
"""Limit of a duration, about 31 years."""


def accept(
    expected: str, is_valid: Callable[[Any], bool], convert: Callable[[Any], Any] | None = None
) -> BeforeValidator:
    """Accept values for which *is_valid* returns true, changed by *convert*.

    *expected* describes them in the error, and `describe_errors` adds the value found.
    """

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise _error(f"must be {expected}")
        return convert(value) if convert else value

    return BeforeValidator(check)


def integer(least: int, most: int) -> BeforeValidator:
    """Accept integers from *least* to *most*, and integral floats such as 1e3."""
    return accept(
        f"an integer from {least} to {most}",
        lambda value: is_integral(value) and least <= value <= most,
        int,
    )


def number(expected: str, is_valid: Callable[[float], bool]) -> BeforeValidator:
    """Accept finite numbers for which *is_valid* returns true; *expected* describes them in the error."""
    return accept(expected, lambda value: _is_finite(value) and is_valid(float(value)), float)


def _is_flag_or(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, bool) or (isinstance(value, str) and value in names)


def text(expected: str, is_valid: Callable[[str], Any]) -> BeforeValidator:
    """Accept strings for which *is_valid* returns a true value; *expected* describes them in the error."""
    return accept(expected, lambda value: isinstance(value, str) and bool(is_valid(value)))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def _are_names(value: Any) -> bool:
    return _are_texts(value) and all(value)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\0" not in value


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_finite, value))


def _are_class_weights(value: Any) -> bool:
    return _are_numbers(value) and len(value) > 1 and min(value) >= 0 and any(value)


def _to_floats(value: Any) -> tuple[float, ...]:
    return tuple(map(float, value))


def _renames(value: Any) -> tuple[tuple[str, str], ...]:
    pairs = value if isinstance(value, list | tuple) else [value]
    if not all(_are_texts(pair) and len(pair) == 2 and pair[0] for pair in pairs):
        raise _error("must be a list of pairs: a regular expression and its replacement")
    for pattern, replacement in pairs:
        _check_pattern(pattern)
        try:
            re.sub(f"{pattern}|", replacement, "")  # matches, so that the replacement is parsed
        except (re.error, IndexError) as error:
            raise ValueError(f"{replacement!r} is not a replacement for {pattern!r}: {error}") from error
    return tuple((pattern, replacement) for pattern, replacement in pairs)


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return pattern


def _size(value: Any) -> tuple[int, int]:
    pair = value if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(is_integral(size) and 1 <= size <= MAX_UNITS for size in pair):
        raise _error(f"must be an integer from 1 to {MAX_UNITS}, or a list of two: height and width")
    return int(pair[0]), int(pair[1])


def _devices(value: Any) -> str | tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not names or not _are_texts(names):
        raise _error("must be the name of a device, or a list of names")
    for name in names:
        if not DEVICE.fullmatch(name):
            expected = "auto, all, cpu, cuda, cuda:N or mps"
            raise ValueError(f"no device is named {name!r}. Write {expected}")
        if name in ("auto", "all") and not isinstance(value, str) and len(names) > 1:
            raise ValueError(f"{name!r} cannot be one of several devices. Name each, or write {name} alone")
    return value if isinstance(value, str) else tuple(names)


def is_integral(value: Any) -> bool:
    """Return whether *value* is an integer, or a float without decimals."""
    if isinstance(value, Integral):
        return not isinstance(value, bool)
    return isinstance(value, Real) and math.isfinite(value) and float(value).is_integer()


def _is_finite(value: Any) -> bool:
    """Return whether *value* is a number that a float64 can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _error(message: str) -> PydanticCustomError:
    """Return an error with the expected value; `describe_errors` adds the value found."""
    return PydanticCustomError("invalid_param", "{message}", {"message": message})


Count = Annotated[int, integer(1, MAX_COUNT)]
CountFromZero = Annotated[int, integer(0, MAX_COUNT)]
Steps = Annotated[int, integer(1, MAX_STEPS)]
Bytes = Annotated[int, integer(1, MAX_STEPS)]
Units = Annotated[int, integer(1, MAX_UNITS)]
Threads = Annotated[int, integer(1, MAX_PROCESSES)]
Workers = Annotated[int, integer(0, MAX_PROCESSES)]
Prefetch = Annotated[int, integer(0, MAX_PREFETCH)]
Seed = Annotated[int, integer(-(2**63), 2**63 - 1)]
"""A seed; every record format stores it in 64 bits."""
Positive = Annotated[float, number("a finite number above 0", lambda value: value > 0)]
NonNegative = Annotated[float, number("a finite number of at least 0", lambda value: value >= 0)]
Seconds = Annotated[
    float, number(f"a number above 0 and of at most {MAX_SECONDS}", lambda value: 0 < value <= MAX_SECONDS)
]
Share = Annotated[float, number("a number above 0 and below 1", lambda value: 0 < value < 1)]
Fraction = Annotated[float, number("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Finite = Annotated[float, number("a finite number", math.isfinite)]
Size = Annotated[tuple[int, int], BeforeValidator(_size)]
"""The height and the width of an image; one number is both."""
Range = Annotated[
    tuple[float, float],
    accept(
        "a list of two numbers above 0, the smaller one first",
        lambda value: _are_numbers(value) and len(value) == 2 and 0 < value[0] <= value[1],
        _to_floats,
    ),
]
"""The smallest and the largest value of a positive number."""
Coefficients = Annotated[
    tuple[float, float, float],
    accept(
        "a list of three finite numbers",
        lambda value: _are_numbers(value) and len(value) == 3,
        _to_floats,
    ),
]
"""The coefficients of a polynomial."""
Decay = Annotated[float, number("a number of at least 0 and below 1", lambda value: 0 <= value < 1)]
Factor = Annotated[float, number("a number above 0 and of at most 1", lambda value: 0 < value <= 1)]
Flag = Annotated[bool, accept("true or false", lambda value: isinstance(value, bool))]
Precision = Literal["f32", "tf32", "bf16", "fp16"]
"""IEEE float32, float32 with TF32 in CUDA's matrix products, or autocast to a half-precision dtype."""
BURN_STRATEGIES = {"DistributedDataParallel": "ddp", "OptimMainDevice": "ddp", "OptimSharded": "fsdp"}
"""The strategies by the names that Burn has for them."""
COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`: those without CUDA graphs of their own."""
FastPath = Literal["auto", "off"]
"""``auto``: call the fused kernel of the optimizer directly if it gives the same bits; ``off``: never."""
Strategy = Annotated[
    Literal["auto", "ddp", "fsdp"],
    BeforeValidator(lambda value: BURN_STRATEGIES.get(value, value) if isinstance(value, str) else value),
]
"""How several ranks train one model: ``auto`` and ``ddp`` add gradients, ``fsdp`` shards the parameters."""
StepKind = Literal["auto", "eager", "captured"]
"""``auto``: capture training steps in a CUDA graph if possible; ``captured``: or warn; ``eager``: never."""
Compile = Annotated[
    bool | str, accept(f"true, false, or one of {', '.join(COMPILE_MODES)}", _is_flag_or(*COMPILE_MODES))
]
Resident = Annotated[bool | Literal["auto"], accept("true, false or 'auto'", _is_flag_or("auto"))]
_text = text("a string that is not empty", _is_name)
Text = Annotated[str, _text]
DATA_PATH = "path to data"
"""Marks a field that is a path to data, of which `learner check` checks that it exists and is in ``deps``."""
DataPath = Annotated[str, _text, DATA_PATH]
Character = Annotated[
    str,
    text(
        "one character of ASCII, such as ';', and neither a quote nor a line break",
        lambda value: len(value) == 1 and value not in '"\r\n\0' and value.isascii(),
    ),
]
Spellings = Annotated[tuple[str, ...], accept("a list of texts, which may be empty", _are_texts, tuple)]
Texts = Annotated[tuple[str, ...], accept("a list of names", _are_names, tuple)]
Names = Annotated[
    str | tuple[str, ...],
    accept(
        "a name, or a list of names", lambda value: _is_name(value) or (bool(value) and _are_names(value))
    ),
]
Patterns = Annotated[
    tuple[str, ...],
    accept("a list of regular expressions", _are_names, lambda value: tuple(map(_check_pattern, value))),
]
"""Regular expressions, searched for in a name."""
Renames = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_renames)]
"""Pairs of a regular expression and its replacement, applied in order."""
ClassWeights = Annotated[
    tuple[float, ...] | Literal["balanced"],
    accept(
        "'balanced', or a list of a finite number of at least 0 for each class",
        lambda value: value == "balanced" or _are_class_weights(value),
        lambda value: value if value == "balanced" else _to_floats(value),
    ),
]
"""A weight for each class, or ``balanced``."""
FileName = Annotated[
    str,
    text(
        "the name of a file or folder, without a path",
        lambda value: value not in ("", ".", "..") and not set(value) & {"/", "\0"},
    ),
]
Devices = Annotated[str | tuple[str, ...], BeforeValidator(_devices)]
"""Names of PyTorch devices; the build of the learner checks that they exist."""
UNPORTABLE_OPTIMIZERS = ("adadelta", "adagrad", "nadam", "radam", "rmsprop", "sparseadam")
"""Optimizers that compute `torch.sqrt`, in lower case and without underscores."""


def describe_portable_conflict(*, num_threads: int | None, precision: str, compiles: bool) -> str | None:
    """Return the setting that rules a portable run out, and what to do, or None."""
    if num_threads is None:
        return (
            "portable needs num_threads, because sums of threads depend on their number. Set num_threads to 1"
        )
    if precision != "f32":
        return f"portable needs precision f32, not {precision!r}. Set precision to f32, or portable to false"
    if compiles:
        return "portable excludes compile, which compiles for this CPU. Set one of them to false"
    return None


def describe_portable_optimizer_conflict(name: str) -> str | None:
    """Return the reason for which the optimizer *name*, a kind or a class, is not portable, or None.

    torch computes the square roots of these optimizers by a function of MKL that depends on the CPU.
    """
    if name.rpartition(":")[2].lower().replace("_", "") not in UNPORTABLE_OPTIMIZERS:
        return None
    return (
        f"portable excludes the optimizer {name}, because MKL's square roots differ between CPU models. Set "
        "the optimizer to adam, adamw, sgd or muon, or portable to false"
    )


def describe_lbfgs_conflict(batches: int, ranks: int) -> str | None:
    """Return why L-BFGS cannot use windows of *batches* or several *ranks*, and what to do, or None."""
    if batches == ranks == 1:
        return None
    mistake = f"accumulate over {batches} batches" if batches > 1 else f"use {ranks} ranks"
    return (
        f"L-BFGS evaluates one batch several times, so it cannot {mistake}: use one device, no accumulation, "
        "and a larger batch"
    )
