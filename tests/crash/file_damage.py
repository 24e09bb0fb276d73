"""Damage to a file: a flipped bit, a missing half, zeros, other content, conflict markers, no permission."""

import os
import shutil
import stat
from pathlib import Path

KINDS = ("flipped", "halved", "emptied", "zeroed", "replaced", "unreadable")
CONFLICT = "conflicting"
"""The kind of damage by git's conflict markers, for dvc.lock and params.yaml."""


def kinds_of(path):
    """Return the kinds of damage to the file at *path* that a command can detect."""
    kinds = [kind for kind in KINDS if kind != "unreadable" or os.geteuid() != 0]
    if path.name in ("params.yaml", "dvc.lock"):
        kinds.append(CONFLICT)
    if path.name == "params.yaml":  # another value is a valid file, which cannot be detected
        return ["halved", "emptied", "zeroed", CONFLICT]
    return kinds if path.stat().st_size else ["replaced"]


def damage(path, kind, draw, other):
    """Damage the file at *path* in place by *kind*; *other* is a valid file of the same kind, or None.

    The mode is kept, and in half of the cases the modification time. Return the kind of damage, which differs
    from *kind* if the file cannot have that one.
    """
    about, content = path.stat(), path.read_bytes()
    if kind == "unreadable":
        path.chmod(0)
        return kind
    if kind == "replaced" and (other is None or other.read_bytes() == content):
        kind = "flipped" if content else "filled"
    path.chmod(about.st_mode | stat.S_IWUSR)
    path.write_bytes(_damage_content(content, kind, draw, other))
    path.chmod(about.st_mode)
    if draw.random() < 0.5 and ".dvc" in path.parts:  # elsewhere DVC detects edits by the modification time
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    return kind


def _damage_content(content, kind, draw, other):
    if kind == "flipped":
        changed = bytearray(content)
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    if kind == CONFLICT:
        lines = content.splitlines(keepends=True)
        place = draw.randrange(len(lines))
        mine, theirs = lines[place], lines[place - 1]
        marked = [b"<<<<<<< HEAD\n", mine, b"=======\n", theirs, b">>>>>>> branch\n"]
        return b"".join([*lines[:place], *marked, *lines[place + 1 :]])
    if kind == "replaced":
        return other.read_bytes()
    size = len(content)
    return {"halved": content[: size // 2], "emptied": b"", "zeroed": bytes(size), "filled": bytes(16)}[kind]


def counterpart(path, elsewhere, draw):
    """Return the file *elsewhere* of the same kind as *path*, or a sibling of *path*, or None."""
    if elsewhere is not None and elsewhere.is_file() and elsewhere.read_bytes() != path.read_bytes():
        return elsewhere
    siblings = [
        each for each in sorted(path.parent.iterdir()) if each.is_file() and each.suffix == path.suffix
    ]
    content = path.read_bytes()
    others = [each for each in siblings if each.read_bytes() != content]
    return draw.choice(others) if others else None


def files_below(folder):
    """Return every file below *folder*, relative to it, in order."""
    return [path.relative_to(folder) for path in sorted(Path(folder).rglob("*")) if path.is_file()]


def delete_tree(folder):
    """Delete *folder* and everything below it, also while a run adds, renames and removes files there."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
