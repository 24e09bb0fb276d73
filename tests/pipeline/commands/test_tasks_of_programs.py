"""25 tasks that a program does with `learner`, from nothing but the JSON that the commands print."""

import json
import shutil

import pytest
from envelopes import call
from templates import experiments_template

MODEL, CHECKPOINT = "artifacts/model.mpk.gz", "artifacts/checkpoint/model-{}.mpk.gz"
ACCURACY, LOSS = "valid/Accuracy", "valid/Loss"


@pytest.fixture(scope="module")
def experiments(home, tmp_path_factory):
    """Return a project with a finished run and three experiments, which the tasks only read."""
    return experiments_template(home).copied_to(tmp_path_factory.mktemp("tasks") / "project")


def find(rows, **fields):
    """Return the only one of *rows* with these *fields*."""
    [row] = [row for row in rows if all(row[name] == value for name, value in fields.items())]
    return row


def best(runs, metric):
    """Return the name of the best of *runs* by *metric*."""
    measured = {run["name"]: run["metrics"][metric] for run in runs}
    choose = {"highest": max, "lowest": min}[next(iter(measured.values()))["better"]]
    return choose(measured, key=lambda name: measured[name]["best"])


READING = {
    "which run has the best accuracy?": (
        "compare",
        lambda data: best(data["runs"], ACCURACY) == data["runs"][0]["name"],
        "compare --sort Accuracy",
    ),
    "which run trained for the most epochs?": (
        "compare",
        lambda data: max(data["runs"], key=lambda run: run["epochs"])["name"] == "longer",
    ),
    "which params differ between two runs?": (
        "compare workspace big",
        lambda data: data["differing"] == ["fit.batch_size"],
    ),
    "which batch size had an experiment?": (
        "compare big",
        lambda data: data["runs"][0]["params"]["fit.batch_size"] == 64,
    ),
    "what is the loss of the last epoch of a run?": (
        "compare longer --metric valid/Loss",
        lambda data: (
            data["runs"][0]["metrics"][LOSS]["last"] == data["runs"][0]["metrics"][LOSS]["series"]["3"]
        ),
    ),
    "can the outputs of all experiments be restored?": (
        "compare",
        lambda data: [run["cached"] for run in data["runs"]] == [True] * 4,
    ),
    "in which epoch was the validation loss lowest?": (
        "summary",
        lambda data: find(data["metrics"], split="Valid", metric="Loss")["min_epoch"] == 2,
    ),
    "is every stage up to date?": (
        "status",
        lambda data: all(stage["up_to_date"] for stage in data["stages"]),
    ),
    "from which epochs can training resume?": ("status", lambda data: data["checkpoints"] == [1, 2]),
    "which run stores are finished?": (
        "runs list",
        lambda data: {run["state"] for run in data} == {"finished"} and len(data) == 2,
    ),
    "does the current configuration have a run?": (
        "runs show",
        lambda data: (data["current"] == data["run"]["key"]) == (data["differences"] == []),
    ),
    "are all files of all runs intact?": (
        "runs verify",
        lambda data: not any(file["problem"] for file in data),
    ),
    "which params are defaults?": (
        "params",
        lambda data: data["fit.seed"]["is_default"] != data["fit.precision"]["is_default"],
    ),
    "with how many epochs would a run train?": ("params", lambda data: data["fit.num_epochs"]["value"] == 2),
    "how many parameters has the model?": (
        f"records show {MODEL}",
        lambda data: data["parameters"] == sum(size(row) for row in data["entries"] if "shape" in row),
    ),
    "which points would a sweep run?": (
        "sweep -S fit.seed=11,12 --dry-run",
        lambda data: [point["state"] for point in data] == ["to run"] * 2,
    ),
}
"""Question to command and a check of the answer in its data, which may come from a second command."""


def size(row):
    """Return the number of elements of the tensor in *row*."""
    count = 1
    for length in row["shape"]:
        count *= length
    return count


@pytest.mark.parametrize("question", READING)
def test_program_reads_the_answer(experiments, question):
    command, is_right, *more = READING[question]

    envelope = call(experiments, more[0] if more else command)

    assert is_right(envelope["data"]), envelope["data"]


def test_program_finds_that_two_checkpoints_differ_and_a_copy_does_not(finished):
    shutil.copy(finished.folder / CHECKPOINT.format(2), finished.folder / "copy.mpk.gz")

    different = call(finished, f"records diff {CHECKPOINT.format(1)} copy.mpk.gz")
    same = call(finished, f"records diff {CHECKPOINT.format(2)} copy.mpk.gz")

    assert (different["ok"], different["data"]["equal"]) == (False, False)
    assert (same["ok"], same["data"]) == (True, {"equal": True, "differences": []})


def test_program_finds_the_stale_stage_and_the_reason(finished):
    finished.edit("params.yaml", "batch_size: 32", "batch_size: 64")

    stages = call(finished, "status")["data"]["stages"]
    stale = [stage["name"] for stage in stages if not stage["up_to_date"]]
    reasons = call(finished, f"status --why {stale[-1]}")["data"]["reasons"]

    assert stale == ["create-artifact-dir", "fit"]  # the first writes all params
    assert reasons == ["fit.batch_size: 32 → 64"]


def test_program_finds_a_misspelled_key_and_its_correction(finished):
    finished.edit("params.yaml", "  batch_size:", "  batch_sise:")

    error = call(finished, "check --no-import")["error"]

    assert error["code"] == "ParamsError"
    assert "batch_sise" in error["message"] + error["hint"]
    assert "batch_size" in error["message"] + error["hint"]


def test_program_finds_a_missing_dependency_and_adds_it(finished):
    (finished.folder / "nets.py").write_text("class Net: pass\n")
    finished.use_model("nets:Net")

    missing = call(finished, "check --no-import")
    fixed = call(finished, "check --no-import --fix")

    assert not missing["ok"]
    assert any("nets.py" in line for line in missing["data"]["missing"])
    assert fixed["ok"]
    assert fixed["data"]["fixed"]


def test_program_sets_the_params_of_a_resume(finished):
    resumed = call(finished, "resume HEAD --epoch 1 --no-run")["data"]
    params = call(finished, "params")["data"]

    assert params["build_learner.checkpoint.rev"]["value"] == resumed["commit"]
    assert params["build_learner.checkpoint.epoch"]["value"] == 1


def test_program_frees_the_space_of_finished_runs(finished):
    removed = call(finished, "runs prune --keep 0")["data"]["removed"]

    assert len(removed) == 1
    assert call(finished, "runs list")["data"] == []


@pytest.mark.long  # it trains; `test_program_finds_a_damaged_file` has the first half
def test_program_repairs_a_store_and_reruns_with_a_param(finished):
    [run] = call(finished, "runs list")["data"]
    (finished.folder / run["path"] / "checkpoint/model-2.mpk.gz").unlink()
    damaged = [file["name"] for file in call(finished, "runs verify")["data"] if file["problem"]]

    rerun = call(finished, "run -S fit.num_epochs=3")

    assert "checkpoint/model-2.mpk.gz" in damaged
    assert rerun["data"]["stages"]["fit"] == "ran"
    assert call(finished, "runs verify")["ok"]
    assert call(finished, "params")["data"]["fit.num_epochs"]["value"] == 3


def test_program_finds_a_damaged_file(finished):
    [run] = call(finished, "runs list")["data"]
    (finished.folder / run["path"] / "checkpoint/model-2.mpk.gz").unlink()

    verified = call(finished, "runs verify")

    damaged = [file["name"] for file in verified["data"] if file["problem"]]
    assert damaged == ["checkpoint/trainer-2", "checkpoint/model-2.mpk.gz"]


@pytest.mark.long  # it trains
def test_program_resumes_a_run_and_follows_it(finished):
    done = finished.call("resume", "HEAD", "--epoch", "1", "--events")

    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [2]
    assert events[-1]["data"]["stages"]["build-learner"] == "ran"
