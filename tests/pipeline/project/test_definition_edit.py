"""Deps that are added to dvc.yaml change no other byte of it."""

from pathlib import Path

import pytest

from pipeline.project.yaml_files import add_deps
from stages.contracts.errors import ParamsError

BEGIN = "# head\nstages:\n  fit:\n    cmd: x  # run it\n"
END = "    outs: [y]  # results\n\n  # next\n  other:\n    cmd: z\n"
FORMS = {
    "list": ("    deps:\n      - a  # why\n", "    deps:\n      - a  # why\n      - b.py\n"),
    "list without indentation": ("    deps:\n    - a\n", "    deps:\n    - a\n    - b.py\n"),
    "last item has settings": (
        "    deps:\n      - a:\n          cache: false\n      # note\n",
        "    deps:\n      - a:\n          cache: false\n      - b.py\n      # note\n",
    ),
    "list in brackets": ("    deps: [a, c]\n", "    deps: [a, c, b.py]\n"),
    "list in lines of brackets": ("    deps: [a,\n      c]\n", None),
    "comment behind": (
        "    deps:\n      - a\n\n    # about outs\n",
        "    deps:\n      - a\n      - b.py\n\n    # about outs\n",
    ),
    "quoted": ("    deps:\n      - 'a b'\n", "    deps:\n      - 'a b'\n      - b.py\n"),
    "null": ("    deps:\n", None),
    "empty": ("    deps: []\n", None),
    "alias": ("    deps: *shared\n", None),
}


@pytest.mark.parametrize(("before", "after"), FORMS.values(), ids=FORMS)
def test_dep_is_added_after_the_last_one(before, after):
    text = f"{BEGIN}{before}{END}"
    if "*shared" in before:
        text = text.replace("# head", "vars: [&shared [a]]")

    if after is None:
        with pytest.raises(
            ParamsError, match="the deps of fit cannot be edited. Add these lines:\n      - b.py"
        ):
            add_deps(text, {"fit": [Path("b.py")]})
    else:
        assert add_deps(text, {"fit": [Path("b.py")]}) == f"{BEGIN}{after}{END}"


def test_stage_without_deps_gets_them_before_its_command():
    edited = add_deps(f"{BEGIN}{END}", {"fit": [Path("b.py")], "other": [Path("/data/my set.csv")]})

    assert "  fit:\n    deps:\n      - b.py\n    cmd: x  # run it\n" in edited
    assert edited.endswith("  other:\n    deps:\n      - '/data/my set.csv'\n    cmd: z\n")


def test_line_ends_of_windows_stay():
    text = f"{BEGIN}    deps:\n      - a\n{END}".replace("\n", "\r\n")

    edited = add_deps(text, {"fit": [Path("b.py")]})

    assert edited == text.replace("      - a\r\n", "      - a\r\n      - b.py\r\n")
