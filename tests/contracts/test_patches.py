"""Private names of other packages are checked before they are replaced."""

import functools
import importlib
import re

import pytest
from pages import page

from pipeline.doctor.environment import PATCH_MODULES
from stages.contracts.errors import StageError
from stages.system.patches import Patch, check_patches, find_problems

MATCHING = Patch("shutil:copyfile", "a test", "(src, dst, *, follow_symlinks=True)", "any")
MISSING = Patch("json:JSONEncoder.no_such_method", "a test", "(self)", "1.0")
CHANGED = Patch("msgpack:packb", "a test", "(o)", "0.9")


def test_name_with_the_expected_signature_has_no_problem():
    assert MATCHING.problem() is None


def test_name_without_an_expected_signature_only_has_to_exist():
    assert Patch("math:pi", "a test", None, "any").problem() is None


def test_attribute_that_a_class_only_annotates_exists():
    assert Patch("torch.nn:Module._buffers", "a test", None, "any").problem() is None


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (MISSING, ["json.JSONEncoder.no_such_method", "does not exist", "Install json 1.0"]),
        (CHANGED, ["msgpack 1.", "msgpack.packb", "(o, **kwargs)", "not (o)", "Install msgpack 0.9"]),
        (Patch("math:pi", "a test", "()", "2.0"), ["math.pi is not a function", "()", "Install math 2.0"]),
    ],
)
def test_problem_names_the_installed_and_the_supported_version(patch, words):
    assert [word for word in words if word not in patch.problem()] == []


def test_replacement_that_wraps_the_original_has_no_problem(monkeypatch):
    @functools.wraps(MATCHING.find())
    def replacement(*arguments):
        return arguments

    monkeypatch.setattr("shutil.copyfile", replacement)

    assert MATCHING.problem() is None


def test_check_raises_one_error_that_lists_every_problem():
    with pytest.raises(StageError) as error:
        check_patches([MATCHING, MISSING, CHANGED])

    assert str(error.value).splitlines() == [
        find_problems([MISSING])[0],
        f"  {find_problems([CHANGED])[0]}",
    ]


def test_pages_list_and_count_the_private_names_that_are_replaced_or_used():
    """The page may leave out the module of a name that follows another one."""
    modules = map(importlib.import_module, PATCH_MODULES)
    names = [patch.name.removesuffix(".default") for module in modules for patch in module.PATCHES]
    rows = re.findall(
        r"^\| (`.*?`) \|", page("pipeline/README.md").section("Replaced private names"), re.MULTILINE
    )
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]

    assert last_parts(names) == last_parts(listed) - {"_toml", "_json", "_py"}
    assert f"replaced private names: {len(names)}, all" in page("pipeline/doctor/README.md").text


def last_parts(names):
    return {re.split("[.:]", name)[-1] for name in names}
