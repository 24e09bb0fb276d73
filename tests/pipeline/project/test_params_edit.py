"""Overrides in params.yaml change the keys that they set, and nothing else of the file."""

from pathlib import Path

import pytest

from pipeline.engine.params_journal import edit_params
from pipeline.project.params_edit import apply, override_content, override_params, parse_params
from pipeline.project.snapshot import look_up
from stages.contracts.errors import ParamsError

ROOT = Path(__file__).parents[3]
PARAMS = Path("params.yaml")
KEEP = """\
  keep:
    - notes-${missing}.txt
    - "${oc.env:HOME}.txt"
"""
TEXT = (ROOT / "params.yaml").read_text().replace("  keep: []\n", KEEP)


@pytest.fixture
def params(tmp_path, monkeypatch):
    """Return a params.yaml with interpolations, in the current folder, beside a dvc.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    PARAMS.write_text(TEXT)
    (tmp_path / ".runs").mkdir()
    return tmp_path / PARAMS


@pytest.mark.parametrize("suffix", ["yaml", "json", "toml"])
def test_override_keeps_interpolations_in_other_keys(params, suffix):
    """In every file that DVC's -S can change, as in a copy of a sweep."""
    draft = Path(f"other.{suffix}")
    draft.write_text(
        {"yaml": "a: ${x}\nb: 1\n", "json": '{"a": "${x}", "b": 1}'}.get(suffix, 'a = "${x}"\nb = 1\n')
    )

    apply(["b=7"], draft)

    assert parse_params(draft.read_text(), draft.name) == {"a": "${x}", "b": 7}


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb:\n  c: 'x:y'\n  d: [1, 2]\n",
        "a: {b: 1}\n",
        "a: &x 1\nb: *x\n",
        "a: ${b}\nb: 2020-01-01\n",
        "1: 2\na: x\n",
    ],
)
@pytest.mark.parametrize(
    "override",
    ["a=1e-4", "a='2020-01-01'", "++a={b:'u v',c:[null,true]}", "a=nan", "++n.m=.5", "~a", "z=1", "a='x:y'"],
)
def test_content_after_an_override_is_that_of_the_file(text, override, tmp_path):
    """The content is that of the file also if no file is written, because DVC sets the values in JSON."""
    draft = tmp_path / "params.yaml"
    draft.write_text(text)

    def edit():
        apply([override], draft)
        return parse_params(draft.read_text(), draft.name)

    def describe(action):
        try:
            return sorted(action().items(), key=repr)
        except ParamsError as error:
            return error

    result = describe(lambda: override_content([override], text, "params.yaml"))

    assert repr(result) == repr(describe(edit))


def test_value_of_an_override_is_interpolated(params):
    assert override_params(["fit.num_epochs=${fit.seed}"]) == TEXT.replace("epochs: 20", "epochs: 42")


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_override_keeps_every_other_byte(params, line_end):
    content = TEXT.replace("\n", line_end).encode()
    params.write_bytes(content)

    with edit_params(["fit.num_epochs=7"]):
        pass

    assert params.read_bytes() == content.replace(b"epochs: 20", b"epochs: 7")


def test_draft_of_an_override_keeps_its_line_ends(params):
    params.write_bytes(TEXT.replace("\n", "\r\n").encode())

    apply(["fit.num_epochs=7"], PARAMS)

    lines = params.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\r\n") for line in lines)
    assert b"  num_epochs: 7\r\n" in lines


@pytest.mark.parametrize("is_killed", [False, True])
def test_override_is_written_through_a_link(params, is_killed):
    other = params.parent / "experiments/base.yaml"
    other.parent.mkdir()
    params.rename(other)
    params.symlink_to("experiments/base.yaml")

    with pytest.raises(KeyboardInterrupt) if is_killed else edit_params(["fit.num_epochs=7"]):
        if is_killed:
            with edit_params(["fit.num_epochs=7"]):
                raise KeyboardInterrupt

    assert params.readlink() == Path("experiments/base.yaml")
    assert other.read_text() == (TEXT if is_killed else TEXT.replace("epochs: 20", "epochs: 7"))


def edit_content(overrides):
    return override_content(overrides, TEXT, PARAMS.name)


both_edits = pytest.mark.parametrize("edit", [override_params, edit_content])


@both_edits
@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("fit.validate_every=2", 2),
        ("fit.keep.last=3", 3),
        ("build_learner.optimizer.weight_decay=0.1", 0.1),
        ("load_data.test_fraction=0.1", 0.1),
    ],
)
def test_override_adds_a_param_that_exists(params, edit, override, value):
    edited = edit([override, "fit.num_epochs=3"])

    content = parse_params(edited, PARAMS.name) if isinstance(edited, str) else edited
    assert look_up(content, override.partition("=")[0]) == value
    assert content["fit"]["num_epochs"] == 3


@both_edits
@pytest.mark.parametrize("override", ["fit.precison=bf16", "save_model.best.metric=Accuracy", "fti.seed=1"])
def test_override_of_an_unknown_param_is_refused(params, edit, override):
    with pytest.raises(ParamsError, match="Correct the key, or add one that is unknown with a plus"):
        edit([override])
