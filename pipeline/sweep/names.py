"""What an experiment of a sweep is called: what varies, in a form that git takes as a part of a ref."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipeline.comparison.tables import short_names
from pipeline.sweep.points import Point

LONGEST = 80
_BRACKETS = re.compile(r"[\[\]{}'\"\s]")
_FOREIGN = re.compile(r"[^A-Za-z0-9._+=,-]+")


def plain_names(points: Sequence[Point]) -> list[str]:
    """A name for each point, as ``batch_size=32,learning_rate=0.001``; empty where that is not unique."""
    titles = short_names(sorted({key for point in points for key, _ in point.varying}))
    names = [_legal(",".join(f"{titles[key]}={value}" for key, value in each.varying)) for each in points]
    counted = Counter(names)
    return [name if counted[name] == 1 and len(name) <= LONGEST else "" for name in names]


def told_apart(point: Point, content: Any) -> str:
    """A name for *point* that the same point with another *content* (plain values) does not have."""
    text = json.dumps(content, sort_keys=True, default=str)
    told = _legal(",".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.varying))
    return f"{told[:LONGEST].rstrip('.,=-')}-{hashlib.sha256(text.encode()).hexdigest()[:7]}"


def _legal(text: str) -> str:
    """*text* without what git forbids in a ref, or a shell takes for its own."""
    text = _FOREIGN.sub("-", _BRACKETS.sub("", text))
    return re.sub(r"\.\.+", ".", text).strip(".-").removesuffix(".lock")
