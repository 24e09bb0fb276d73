"""Trace the system calls of a child process and its threads on the files of a folder, and change one.

Like ``strace -e inject``, but counting only the calls on these files, of all kinds, and with real short
writes: the kernel is asked to write fewer bytes.
"""

import ctypes
import errno
import os
import platform
import re
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from report import SkippedError

TRACEME, POKEUSER, CONT, SETOPTIONS, SYSCALL, GET_SYSCALL_INFO = 0, 6, 7, 0x4200, 24, 0x420E
TRACESYSGOOD, TRACECLONE, EXITKILL = 1, 8, 0x100000
ALL_THREADS = 0x40000000
"""The option of `os.waitpid` that also reports threads."""
ENTRY, EXIT = 1, 2
ORIG_RAX, RAX, RDX = 15 * 8, 10 * 8, 12 * 8
AT_FDCWD = -100
"""The kernel's handle of the working directory."""
BY_HANDLE = {0: "read", 1: "write", 18: "pwrite64", 40: "sendfile", 73: "flock", 74: "fsync", 75: "fdatasync"}
BY_HANDLE |= {77: "ftruncate", 285: "fallocate", 306: "syncfs"}
BY_PATH = {82: "rename", 83: "mkdir", 84: "rmdir", 87: "unlink"}
BY_FOLDER_AND_PATH = {257: "openat", 258: "mkdirat", 263: "unlinkat", 264: "renameat", 316: "renameat2"}
WRITES = {"write", "pwrite64"}
PAGE = 4096
RANDOM_PART = re.compile(r"(?<=\.)[0-9a-f]{8}(?=\.part\b)|(?<=\.)[\w-]{22}(?=\.tmp\b)")
"""The part of a temporary name, of this project or of DVC, that is another in each run."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Info(ctypes.Structure):
    """The kernel's description of a system call."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("ip", ctypes.c_uint64),
        ("sp", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Call:
    """A system call on a file of the folder."""

    name: str
    path: str
    """The path relative to the folder."""
    occurrence: int = 0
    """The number of earlier calls of this name on this file; threads make the order of others vary."""

    def __str__(self):
        return f"{self.name} {self.path} ({self.occurrence})"


def check_permitted():
    """Raise `SkippedError` if this machine cannot trace a child process."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise SkippedError("system calls can only be changed on Linux on x86-64")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _libc.ptrace(TRACEME, 0, None, None) == 0 else 1)
    if os.waitpid(pid, 0)[1]:
        raise SkippedError("this machine does not permit ptrace")


def wait_for_tracer():
    """Stop the child until the parent traces it."""
    _libc.ptrace(TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)


def trace(pid, folder, target=None, change=None):
    """Let the child *pid* run, and *change* its call *target* below *folder*.

    Return its calls, up to *target* if that is reached, and its status from `os.waitpid`. *change* is
    ``kill``, ``short``, or the name of an error such as ``ENOSPC``.
    """
    os.waitpid(pid, 0)
    _ptrace(SETOPTIONS, pid, 0, TRACESYSGOOD | TRACECLONE | EXITKILL)
    calls, counts, pending, threads = [], Counter(), {}, {pid}
    thread, passed_on, is_changed = pid, 0, False
    while True:
        if thread in threads:
            _ptrace(CONT if is_changed and thread not in pending else SYSCALL, thread, 0, passed_on)
        thread, status = os.waitpid(-1, ALL_THREADS)
        if not os.WIFSTOPPED(status):
            if thread == pid:
                return calls, status
            threads.discard(thread)
            continue
        passed_on = _signal_to_pass_on(status, is_new=thread not in threads)
        threads.add(thread)
        if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
            continue
        info = Info()
        _ptrace(GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.addressof(info))
        if info.op == EXIT and thread in pending:
            _ptrace(POKEUSER, thread, RAX, -pending.pop(thread))
        elif info.op == ENTRY and (found := _call(thread, info)) and found[1].startswith(str(folder)):
            key = found[0], RANDOM_PART.sub("*", found[1].removeprefix(str(folder)))
            calls.append(Call(*key, counts[key]))
            counts[key] += 1
            if calls[-1] == target:
                is_changed = True  # further stops would only take time
                if error := _change_call(pid, thread, info, change):
                    pending[thread] = error


def _signal_to_pass_on(status, *, is_new):
    """Return the signal that stopped a thread; 0 for a stop that the tracer caused."""
    number = os.WSTOPSIG(status)
    is_event = number == signal.SIGTRAP | 0x80 or status >> 16
    return 0 if is_event or (is_new and number == signal.SIGSTOP) else number


def _change_call(pid, thread, info, change):
    """Change the call at its entry; return the number of the error to set at its exit, if any."""
    if change == "kill":
        os.kill(pid, signal.SIGKILL)
    elif change == "short":
        _ptrace(POKEUSER, thread, RDX, max(1, info.arguments[2] // 2))
    else:
        _ptrace(POKEUSER, thread, ORIG_RAX, -1)
        return getattr(errno, change)
    return None


def _call(pid, info):
    """Return the name of the call and the path of its file, if it has one."""
    number, arguments = info.number, info.arguments
    if number in BY_HANDLE:
        return BY_HANDLE[number], _of_handle(pid, arguments[0])
    if number in BY_PATH:
        return BY_PATH[number], _text(pid, arguments[0])
    if number in BY_FOLDER_AND_PATH:
        path, folder = _text(pid, arguments[1]), ctypes.c_int(arguments[0]).value
        if not path.startswith("/") and folder != AT_FDCWD:
            path = f"{_of_handle(pid, folder)}/{path}"
        writes = BY_FOLDER_AND_PATH[number] == "openat" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        return "open to write" if writes else BY_FOLDER_AND_PATH[number], path
    return None


def _of_handle(pid, handle):
    try:
        return str(Path(f"/proc/{pid}/fd/{handle}").readlink())
    except OSError:
        return ""


def _text(pid, address):
    """Return the null-terminated text at *address* of the child's memory."""
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            text = b""
            while b"\0" not in text:
                text += memory.read(PAGE - (address + len(text)) % PAGE)  # the next page may not exist
            return text.partition(b"\0")[0].decode(errors="replace")
    except OSError:
        return ""


def _ptrace(request, pid, address, value):
    if _libc.ptrace(request, pid, address, value) < 0:
        code = ctypes.get_errno()
        if code != errno.ESRCH:  # the child has ended: `os.waitpid` reports it
            raise OSError(code, os.strerror(code), "ptrace")
