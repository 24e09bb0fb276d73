"""Write requirements.lock and requirements-cuda.lock: the tested versions with the hashes of their wheels.

The files differ in the build of PyTorch, for the CPU and for CUDA, and in the libraries of CUDA.

Run it with uv after a change of constraints.txt, from an index that has PyTorch for CUDA, and name the folder
with the wheel of PyTorch for the CPU: ``python .github/write_locks.py FOLDER``.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OPTIONS = ("--python-version", "3.11", "--extra", "page", "--constraints", "constraints.txt")
HEADER = (
    "# Written by .github/write_locks.py, for Python 3.11 on x86-64: pip install --require-hashes -r {}\n"
)

Lock = dict[str, set[str]]
"""Package, as in ``sqlalchemy[asyncio]==2.0.58``, to its hashes."""


def resolve(*options: str) -> Lock:
    """Return the packages that this project and its extra ``page`` need."""
    pins = compile_requirements("--no-strip-extras", "--no-annotate", "--no-header", *options)
    packages = tomllib.loads(compile_requirements("--format", "pylock.toml", *options))["packages"]
    hashes = {each["name"]: list_hashes(each) for each in packages}
    plain = [re.sub(r"\[.*\]", "", pin) for pin in pins.splitlines()]  # pip needs both if some need an extra
    return {pin: hashes[re.split(r"[\[=]", pin)[0]] for pin in (*pins.splitlines(), *plain)}


def compile_requirements(*options: str) -> str:
    """Return what ``uv pip compile`` prints."""
    command = ["uv", "pip", "compile", "--quiet", *OPTIONS, *options, "pyproject.toml"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def list_hashes(package: dict[str, Any]) -> set[str]:
    """Return the hashes of the wheels of *package*, or of its source if it has none."""
    files = package.get("wheels") or [package["sdist"]]
    return {each["hashes"]["sha256"] for each in files}


def write(name: str, lock: Lock) -> None:
    """Write *lock* to the file *name*."""
    entries = [
        " \\\n    ".join([pin, *(f"--hash=sha256:{each}" for each in sorted(hashes))])
        for pin, hashes in sorted(lock.items())
    ]
    (ROOT / name).write_text(HEADER.format(name) + "\n".join(entries) + "\n", encoding="utf-8")


def main(folder: str) -> None:
    """Write both files; *folder* has the wheel of PyTorch for the CPU."""
    write("requirements.lock", resolve("--find-links", folder))
    write("requirements-cuda.lock", resolve())


if __name__ == "__main__":
    main(*sys.argv[1:])
