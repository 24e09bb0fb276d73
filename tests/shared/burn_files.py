"""Files that Burn wrote, which are beside the project and not in it."""

import importlib.util
from pathlib import Path

import pytest

BURN_022 = Path(__file__).parents[3] / "shared/burn-0.22"
"""The files of Burn 0.22.1, and of 0.21.0 in a folder of it."""
needs_files = pytest.mark.skipif(
    not BURN_022.exists(), reason="needs the files that Burn wrote, in ../shared"
)


def import_file(path):
    """Return the module in the file *path*, such as a program beside the files."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
