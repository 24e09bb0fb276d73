"""Child process of the fuzzer, which reads files and measures the time and memory of each."""

import faulthandler
import gc
import json
import math
import resource
import tempfile
import time
import traceback
import zlib
from pathlib import Path

from fuzz_mutations import case

from stages.contracts.errors import RecordError
from stages.records.byte_readers import ByteReader
from stages.records.formats import read
from stages.records.limits import LEAST_LIMIT, LIMIT_RATIO
from stages.records.record_tree import RawTensor, Some, Variant
from stages.records.tools.conversion import convert_record

SECONDS = 5.0
HANG_SECONDS = 60
SLACK = 64 << 20
ADDRESS_SPACE = 6 << 30
"""Address space limit; a larger allocation raises MemoryError, a finding even if unused."""
MEMORY = Path("/dev/shm")  # noqa: S108  only in a folder of our own
"""Folder in memory."""
EMPTY = {"outcome": "refused", "seconds": 0.0, "grown": 0, "finding": None}


def run_cases(asked, out):
    """Write a row for each index of ``asked.child`` (start, end, step) to *out*."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        for index in range(*asked.child):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            broken = case(asked.seed, index, asked.large_every)
            path = Path(folder) / f"{index}{broken.form.suffix}"
            path.write_bytes(broken.data)
            row = (
                EMPTY | {"index": index, "form": broken.form.name} | measured(path, broken.form, broken.like)
            )
            path.unlink()
            out.write(json.dumps(row) + "\n")
            out.flush()


def measured(path, form, like):
    """Return the outcome, time and memory of reading *path*."""
    row = {}
    before = _reset_peak()
    begin = time.process_time()
    try:
        record = read(path, form, like=like)
    except RecordError:
        record = None
    except BaseException:  # noqa: BLE001  whatever it is, it is a finding
        record = None
        row |= {"outcome": "failed", "finding": traceback.format_exc()[-3000:]}
    row["seconds"] = time.process_time() - begin
    row["grown"] = _memory("VmHWM") - before
    if record is not None:
        row |= {"outcome": "loaded", "finding": _differs(record, form, like)}
    if row["seconds"] > SECONDS:
        row["finding"] = f"it took {row['seconds']:.1f} s"
    size = path.stat().st_size
    if row["grown"] > 2 * size + SLACK and row["grown"] > 2 * (honest := _honest_size(path, form)) + SLACK:
        row["finding"] = (
            f"it took {row['grown'] / 1e6:.0f} MB of memory, its honest size is {honest / 1e6:.1f} MB"
        )
    if row["grown"] > SLACK / 4:
        gc.collect()
    return row


def same(first, second):
    """Return True if two trees are equal, including types and key order; NaN equals NaN."""
    if type(first) is not type(second):
        return False
    if isinstance(first, RawTensor):
        return (first.dtype, first.shape) == (second.dtype, second.shape) and first.data() == second.data()
    if isinstance(first, dict):
        return list(first) == list(second) and all(map(same, first.values(), second.values()))
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, Some):
        return same(first.value, second.value)
    if isinstance(first, Variant):
        return (first.name, first.index) == (second.name, second.index) and same(first.value, second.value)
    if isinstance(first, float):
        return first == second or (math.isnan(first) and math.isnan(second))
    return first == second


def _differs(record, form, like):
    """Return what differs after writing the loaded *record* and reading it again; None if equal."""
    try:
        if not form.has_names:  # the layout before 0.14 is no longer written
            record = convert_record(record, form)
        source = ByteReader.of_bytes(b"".join(form.encode(record)))
        again = form.decode(source, record.item if like is not None else None)
        source.finish()
    except Exception:  # noqa: BLE001  whatever it is, it is a finding
        return f"it loads, but cannot be written and read again: {traceback.format_exc()[-3000:]}"
    if (record.metadata, record.extra) != (again.metadata, again.extra):
        return "it loads, but comes back with other metadata after it is written"
    return None if same(record.item, again.item) else "it loads, but comes back different after it is written"


def _honest_size(path, form):
    """Return the file's size, or that of its inflated content up to the reader's limit."""
    size = path.stat().st_size
    if not form.gzipped:
        return size
    limit = max(LEAST_LIMIT, LIMIT_RATIO * size)
    stream = zlib.decompressobj(31)
    inflated = 0
    data = path.read_bytes()
    try:
        while data and inflated < limit:
            inflated += len(stream.decompress(data, 1 << 20))
            data = stream.unconsumed_tail
    except zlib.error:
        pass
    return max(size, min(inflated, limit))


def _reset_peak():
    """Return the bytes in memory now, the base of the peak."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name):
    text = Path("/proc/self/status").read_text()
    return int(text[text.index(name) + len(name) + 1 :].split(maxsplit=1)[0]) * 1024
