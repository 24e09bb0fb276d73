"""Descriptions of exceptions by the frames of the user's code."""

import json
import traceback

import pytest
import torch

from stages.contracts.errors import BuilderError
from stages.contracts.user_code import MAX_LINE_LENGTH, explain, is_user_file, location, place_of, user_frames
from stages.models import Mlp, backward


def raised(action):
    try:
        action()
    except BaseException as error:  # noqa: BLE001  any that the case raises
        return error
    raise AssertionError("nothing was raised")


def in_library():
    return json.loads("{")


def test_frames_of_libraries_and_of_this_project_are_hidden():
    frames = user_frames(raised(in_library))

    assert [frame.function for frame in frames][-1] == "in_library"
    assert all(frame.path == __file__ for frame in frames)


class Dataset(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {}["missing"]


def test_exception_in_a_worker_has_the_users_frame():
    error = raised(lambda: list(torch.utils.data.DataLoader(Dataset(), 2, num_workers=1)))

    explained = explain(error)

    assert explained.startswith("KeyError: 'missing' (in a worker process of the loader)\n")
    assert "in __getitem__: return {}[" in explained
    assert "site-packages" not in explained


class MessageError(Exception):
    """An exception with an attribute ``message``, whose constructor does not take it."""

    message = "an error"

    def __init__(self, sample):
        super().__init__(f"sample {sample} is empty")


class CodeError(Exception):
    """An exception whose constructor changes its argument."""

    def __init__(self, code):
        super().__init__(f"code {code}")


GROUP = "\n  ValueError: a\n  KeyError: 'b'"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MessageError(3), f"{__name__}.MessageError: sample 3 is empty"),
        (CodeError(7), f"{__name__}.CodeError: code 7"),
        (
            ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
            f"ExceptionGroup: two (2 sub-exceptions){GROUP}",
        ),
    ],
)
def test_exception_of_any_class_reaches_the_user_from_a_worker(error, expected):
    class Raising(Dataset):
        def __getitem__(self, index):
            raise error

    loader = torch.utils.data.DataLoader(Raising(), 2, num_workers=1)

    explained = explain(raised(lambda: list(loader)))

    assert explained.startswith(f"{expected} (in a worker process of the loader)\n")
    assert "in __getitem__: raise error" in explained


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), "ValueError"),
        (ValueError("x" * 10_000), f"ValueError: {'x' * MAX_LINE_LENGTH}…"),
        (SystemExit(), "SystemExit: sys.exit()"),
        (SystemExit("bye"), "SystemExit: sys.exit('bye')"),
        (json.JSONDecodeError("bad", "{", 1), "json.decoder.JSONDecodeError: bad: line 1 column 2 (char 1)"),
        (
            ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
            f"ExceptionGroup: two (2 sub-exceptions){GROUP}",
        ),
    ],
)
def test_first_line_has_the_type_and_a_bounded_message(error, expected):
    assert explain(error) == expected


def test_cycle_of_causes_is_described_once():
    error, other = ValueError("a"), ValueError("b")
    error.__cause__, other.__cause__ = other, error

    assert explain(error).splitlines() == ["ValueError: a", "caused by ValueError: b"]


def test_suppressed_context_is_hidden():
    def act():
        try:
            raise KeyError("hidden")
        except KeyError:
            raise ValueError("shown") from None

    assert "hidden" not in explain(raised(act)).splitlines()[0]
    assert "caused by" not in explain(raised(act))


def test_error_of_this_project_is_located_at_the_call_in_the_users_code():
    error = raised(lambda: backward(torch.nn.Linear(1, 1), torch.zeros(3)))

    assert isinstance(error, BuilderError)
    assert __file__.rpartition("/")[2] in location(error)
    assert location(ValueError()) == ""


def test_places_are_those_of_the_users_code_only():
    assert f"line {in_library.__code__.co_firstlineno})" in place_of(in_library)
    assert place_of(Mlp) == place_of(torch.nn.Linear) == place_of(len) == place_of(3) == ""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (__file__, True),
        ("<stdin>", True),
        ("<ipython-input-3-0ab>", True),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        (torch.__file__, False),
        (traceback.__file__, False),
        (backward.__code__.co_filename, False),
    ],
)
def test_files_of_the_user_are_distinguished_from_others(path, expected):
    assert is_user_file(path) == expected
