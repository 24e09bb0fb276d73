"""A full disk: the run reports it, loses no progress, and resumes when there is space.

The disk is a small file system in memory, mounted in a mount namespace of the processes of the trial.
"""

import ctypes
import errno
import os
import random
import re

from report import Row, SkippedError
from small_run import STEPS, SmallRun, prepare, run_in_child
from trial_projects import COMMANDS, difference, templates
from workers import run_trials

NEWNS, NEWUSER, REC, PRIVATE = 0x00020000, 0x10000000, 0x4000, 1 << 18
BALLAST = "ballast"
KIB = 1024
DISK_FULL = re.compile(
    r"No space left on device|make space|free (disk|some) space|disk is full", re.IGNORECASE
)
_libc = ctypes.CDLL(None, use_errno=True)


def mount_small_disk(folder, kib):
    """Mount a disk of *kib* KiB at *folder*, for this process and its children only."""
    flags = NEWNS if os.geteuid() == 0 else NEWNS | NEWUSER
    _ask(_libc.unshare(flags))
    _ask(_libc.mount(b"none", b"/", None, REC | PRIVATE, None))
    _ask(_libc.mount(b"none", bytes(folder), b"tmpfs", 0, f"size={kib}k".encode()))


def leave_free(folder, kib):
    """Fill the disk at *folder* until *kib* KiB are free, also while a thread writes a checkpoint there."""
    while (size := _free_bytes(folder) - kib * KIB) > 0:
        with (folder / BALLAST).open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            else:
                return


def _free_bytes(folder):
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize


def _ask(code):
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class _FullDiskRun(SmallRun):
    """A run in which the disk becomes full at one step (0: the start) and has space again at another."""

    def __init__(self, folder, kib, full_step, free_step=None):
        super().__init__(folder)
        self._kib, self._full_step, self._free_step = kib, full_step, free_step
        self._count = self.counter.step
        self.counter.step = self._step

    def begin(self, old=None):
        super().begin(old)
        if self._full_step == 0:
            leave_free(self.folder, self._kib)

    def make_space(self):
        """Free the disk, and do not fill it again."""
        (self.folder / BALLAST).unlink(missing_ok=True)
        self._full_step = None

    def _step(self, progress):
        self._count(progress)
        if self.counter.steps == self._full_step:
            leave_free(self.folder, self._kib)
        elif self.counter.steps == self._free_step:
            (self.folder / BALLAST).unlink(missing_ok=True)


class Disks:
    """Trials on small disks."""

    def __init__(self, folder, *, commands):
        self.folder = folder
        self._check_permitted()
        prepare(folder)
        run = SmallRun(folder / "untouched")
        run.begin()
        assert run_in_child(run.fit)[0] == 0
        self.reference = run.outputs()
        self.kib = _size_in_kib(run.folder)
        self.templates = templates(folder.parent) if commands else None

    def _check_permitted(self):
        (self.folder / "probe").mkdir()
        code, _, text = run_in_child(lambda: mount_small_disk(self.folder / "probe", 64))
        if code:
            raise SkippedError(
                f"this machine does not permit a mount in a namespace: {text.split(chr(10))[-2]}"
            )

    def trial(self, planned):
        """Run with a full disk, then again with space, and return the row of the trial."""
        index, kind, share = planned
        folder = self.folder / f"disk-{index}"
        folder.mkdir()
        action = getattr(self, f"_{kind}")
        code, finding, text = run_in_child(lambda: action(folder, index, share))
        finding = finding if code == 0 else f"the trial itself ended with {code}: {text}"
        wrong = finding["wrong"] if code == 0 else finding
        ended = finding["ended"] if code == 0 else 2
        return Row(
            f"a full disk: {kind.replace('_', ' ')}",
            f"trial {index}: {wrong}" if wrong else "",
            {f"ended with {ended}": 1},
        )

    def _space_after_it(self, folder, index, share):
        mount_small_disk(folder, 4 * self.kib)
        return self._full_and_again(_FullDiskRun(folder, int(share * self.kib / 4), index % STEPS))

    def _space_while_it_runs(self, folder, index, share):
        mount_small_disk(folder, 4 * self.kib)
        full_step = 1 + index % (STEPS - 1)
        return self._full_and_again(
            _FullDiskRun(folder, int(share * self.kib / 4), full_step, full_step + 1 + index // 2 % 4)
        )

    def _full_and_again(self, run):
        run.begin()
        code, _, text = run_in_child(run.fit)
        wrong = (
            [] if code == 0 or (code == 1 and DISK_FULL.search(text)) else [f"it ended with {code}: {text}"]
        )
        failed, answer, text = run_in_child(run.newest_checkpoint)
        if failed or answer[1]:
            wrong.append(f"a checkpoint is not intact: {text or answer}")
        run.make_space()
        again, _, text = run_in_child(run.fit)
        if again:
            wrong.append(f"with space it ended with {again}: {text}")
        wrong.append(difference(run.outputs(), self.reference))
        return {"ended": code, "wrong": "; ".join(filter(None, wrong))}

    def _command(self, folder, index, share):
        mount_small_disk(folder, 64 * KIB)
        project = self.templates.start("training", folder / "project", prefix=f"{folder}-files")
        leave_free(folder, int(share * 1200))
        command = COMMANDS[("learner run", "dvc repro")[index % 2]]
        code, wrong = project.finish(*command), []
        text = project.output()
        (folder / BALLAST).unlink(missing_ok=True)
        if code and (not DISK_FULL.search(text) or "Traceback" in text):
            wrong.append(f"{command} ended with {code}: {text[-1500:]}")
        if again := project.finish(*command):
            wrong.append(f"with space it ended with {again}: {project.output()[-1500:]}")
        wrong.append(difference(project.result(), self.templates.reference))
        return {"ended": code, "wrong": "; ".join(filter(None, wrong))}


def _size_in_kib(folder):
    """Return the KiB that the files in *folder* need on a disk, with a page for each file."""
    return sum(4 + path.lstat().st_size // KIB for path in folder.rglob("*"))


def run(asked, folder, until):
    """Return a row for each trial."""
    draw = random.Random(asked.seed)  # noqa: S311  no secret
    kinds = ("space_after_it", "space_while_it_runs") * 5 + ("command",) * 2
    plans = [(i, kinds[i % len(kinds)], draw.random()) for i in range(asked.count)]
    if asked.replay is not None:
        plans = plans[asked.replay :][:1]
    disks = Disks(folder, commands=any(kind == "command" for _, kind, _ in plans))
    return run_trials(disks.trial, plans, asked.jobs, until)
