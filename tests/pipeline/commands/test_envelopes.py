"""The envelope that every command prints with `--json`, compared with the schemas that the package has."""

import json
import math

import pytest
from envelopes import ENVELOPE, call
from schema_files import FOLDER, build_schemas, result_types, to_text

from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary
from pipeline.comparison.tables import comparison_values
from stages.contracts.history import Direction
from stages.contracts.text import to_json

MODEL = "artifacts/model.mpk.gz"
READING = (
    "check --no-import",
    "params",
    "status",
    "status --why fit",
    "data --output samples.png",
    "summary",
    "compare HEAD workspace",
    "compare HEAD --repeats",
    f"records show {MODEL}",
    f"records verify {MODEL}",
    f"records convert {MODEL} model.safetensors --layout burn",
    f"records diff {MODEL} artifacts/checkpoint/model-1.mpk.gz",
    "runs list",
    "runs show",
    "runs verify",
    "runs sync",
    "runs prune",
    "sweep -S fit.seed=1,2 --dry-run",
)
"""Commands that finish, with an exit code of 0 or with problems in their data."""
REFUSED = (
    "versions",
    "serve --interval inf",
    "stage nowhere",
    "resume nowhere --epoch 1",
    "evaluate --model nowhere",
    "publish hub",
)
RUNNING = (
    "init",
    "init own",
    "doctor --timeout 600",
    "plot Loss --svg loss.svg",
    "evaluate",
    "lr-find --steps 40 --min 1e-4 --max 10",
    "predict digits.npy --out predictions.csv",
    "resume HEAD --epoch 1 --no-run",
    "run",
)


def test_schemas_are_those_of_the_commands():
    written = {path.name: path.read_text() for path in FOLDER.iterdir()}

    assert written == {name: to_text(schema) for name, schema in build_schemas().items()}


def test_closed_schema_refuses_a_field_that_it_does_not_describe():
    envelope = {"schema": 1, "command": "params", "ok": True, "data": {}, "error": None}

    assert ENVELOPE.is_valid(envelope)
    assert not ENVELOPE.is_valid(envelope | {"more": 1})
    assert not ENVELOPE.is_valid(envelope | {"data": {"fit.seed": 1}})
    assert not ENVELOPE.is_valid(envelope | {"command": "status"})


def test_output_of_each_command_has_its_schema(finished):
    for command in READING:
        assert call(finished, command)["data"] is not None, command


@pytest.mark.parametrize("better", [Direction.LOWEST, None])
@pytest.mark.parametrize("losses", [[], [math.nan], [math.inf, 0.5]])
def test_comparison_of_runs_without_a_best_value_has_its_schema(losses, better):
    curve = MetricCurve("valid", "Loss", dict(enumerate(losses, start=1)), better)
    run = RunSummary("a", None, metrics={curve.name: curve} if losses else {}, epochs=len(losses) or None)

    data = json.loads(to_json(comparison_values(Comparison((run,)))))

    assert ENVELOPE.is_valid({"schema": 1, "command": "compare", "ok": True, "data": data, "error": None})


@pytest.mark.long  # `test_envelope_of_an_error_separates_the_message_from_the_hint`
def test_error_of_each_command_has_its_schema(finished):
    for command in REFUSED:
        envelope = call(finished, command)
        assert (envelope["ok"], envelope["data"]) == (False, None), command


@pytest.mark.long  # `test_events` runs `learner run` in `make test`
def test_output_of_each_running_command_has_its_schema(finished):
    import numpy as np

    np.save(finished.folder / "digits.npy", np.zeros((3, 1, 8, 8), np.uint8))

    for command in RUNNING:
        envelope = call(finished, command)
        assert envelope["data"] is not None, envelope["error"]["message"]


def test_every_command_is_tested():
    tested = [*READING, *REFUSED, *RUNNING]

    assert [name for name in result_types() if not any(line.startswith(name) for line in tested)] == []


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        (["runs", "lst"], 2, ("ParamsError", "No such command 'lst'", "Did you mean 'list'?")),
        (["params", "--jsn"], 2, ("ParamsError", "No such option: --jsn", None)),
        (["params"], 2, ("ParamsError", "params.yaml cannot be read (No such file or directory)")),
        (["summary", "x"], 1, ("StageError", "x has no logs: found no train/epoch-1/*.log in it")),
    ],
)
def test_envelope_of_an_error_separates_the_message_from_the_hint(
    open_project, tmp_path, command, code, error
):
    done = open_project(tmp_path).call(*command, "--json")

    printed = json.loads(done.out)["error"]
    assert done.code == code
    assert (printed["code"], printed["message"], printed["hint"])[: len(error)] == error
    assert done.err.startswith(f"error: {printed['message']}")


def test_problems_are_data_and_no_success(finished):
    (finished.folder / MODEL).write_bytes(b"x")

    envelope = call(finished, f"records verify {MODEL}")

    assert (envelope["ok"], envelope["error"]["code"]) == (False, "ProblemsFound")
    assert [file["problem"] is None for file in envelope["data"]] == [False]


def test_help_is_printed_in_spite_of_json(open_project, tmp_path):
    assert "--json" in open_project(tmp_path).call("params", "--help", "--json").out


def test_number_that_json_lacks_is_text(open_project, tmp_path):
    folder = tmp_path / "burn/valid/epoch-1"
    folder.mkdir(parents=True)
    (folder / "Loss.log").write_text("NaN\n")
    (folder / "Rate.log").write_text("inf\n")

    rows = call(open_project(tmp_path), "summary burn")["data"]["metrics"]

    assert {row["metric"]: (row["min"], row["max_epoch"]) for row in rows} == {
        "Loss": ("NaN", 1),
        "Rate": ("inf", 1),
    }
