"""`learner compare` and `learner plot` of three experiments on the digits."""

import csv
import json
import re
import shlex
import shutil

import pytest
from pages import page
from templates import EXPERIMENTS as NAMES
from templates import experiments_template


@pytest.fixture(scope="module")
def with_experiments(home, tmp_path_factory):
    """Return a project with three experiments in addition to the run on HEAD."""
    return experiments_template(home).copied_to(tmp_path_factory.mktemp("experiments") / "project")


@pytest.fixture(scope="module")
def outcomes(with_experiments):
    """Run every `learner` command of the README, and return their outcomes."""
    commands = [each for each in page("pipeline/comparison/README.md").commands() if "learner" in each]
    return {each: with_experiments.call(*shlex.split(each)[1:], BROWSER="true") for each in commands}


@pytest.fixture
def page_browser(outcomes, with_experiments, browser):
    """Return a browser that shows the page of all runs."""
    browser.open(with_experiments.folder / "compare.html")
    browser.wait("document.body && document.body.dataset.drawn")
    return browser


def compare(project, *arguments):
    """Return the output of `learner compare --json`."""
    return json.loads(project.call("compare", "--json", *arguments).out)["data"]


def test_every_format_lists_the_workspace_and_all_experiments(with_experiments):
    found = compare(with_experiments)
    text = with_experiments.call("compare").out
    markdown = with_experiments.call("compare", "--md").out
    table = list(csv.DictReader(with_experiments.call("compare", "--csv").out.splitlines()))

    assert [run["name"] for run in found["runs"]] == NAMES
    assert found["differing"] == ["fit.num_epochs", "fit.batch_size", "save_model.recorder"]
    assert text.splitlines()[0].split()[:4] == ["run", "num_epochs", "batch_size", "recorder"]
    assert [line.split()[0] for line in text.splitlines()[1:5]] == NAMES
    assert [line.split(" | ")[0] for line in markdown.splitlines()[2:6]][:3] == [
        "| workspace",
        "| big",
        "| longer",
    ]
    assert [row["run"] for row in table] == NAMES
    assert [int(row["epochs"]) for row in table] == [2, 2, 3, 2]
    for run, row in zip(found["runs"], table, strict=True):
        accuracy = run["metrics"]["valid/Accuracy"]
        assert accuracy["best"] == max(accuracy["series"].values()) == float(row["valid/Accuracy best"])
        assert accuracy["delta"] == accuracy["best"] - found["runs"][0]["metrics"]["valid/Accuracy"]["best"]
        assert run["cached"]
        assert row["cached"] == "true"


def test_values_equal_those_in_metrics_json(with_experiments):
    [run] = compare(with_experiments, "workspace")["runs"]

    written = json.loads((with_experiments.folder / "artifacts/metrics.json").read_text())
    for name, measured in run["metrics"].items():
        split, metric = name.split("/")
        assert measured["last"] == pytest.approx(written[split][metric])
    assert run["seconds"] is None or run["seconds"] > 0


def test_compare_accepts_any_revision_and_sorts_by_a_key(with_experiments):
    sha = with_experiments.ok("git", "rev-parse", "HEAD").strip()
    with_experiments.ok("git", "tag", "-f", "good")
    with_experiments.ok("git", "branch", "-f", "side")

    found = compare(
        with_experiments, "side", "good", sha[:9], "longer", "HEAD~1", "--sort", "epochs", "--reverse"
    )

    assert [run["name"] for run in found["runs"]] == ["longer", "side", "good", sha[:9], "HEAD~1"]
    assert {run["sha"] for run in found["runs"][1:4]} == {sha}
    assert found["first"] == "side"
    assert found["runs"][-1]["metrics"] == {}
    assert found["runs"][-1]["notes"] == ["no stage has run: dvc.lock has no params"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "nowhere"], "'nowhere': not an experiment, tag, branch or commit of this repository"),
        (["compare", "--metric", "valid/Los"], "no run has a metric 'valid/Los'. Did you mean 'valid/Loss'?"),
        (
            ["plot", "Loss", "HEAD~1"],
            "no run has metrics. Run `dvc repro`, or name a revision that has results",
        ),
        (
            ["compare", "--sort", "seed"],
            "'seed' is ambiguous. Name one of: build_learner.seed, fit.seed, load_data.seed",
        ),
        (["compare", "--json", "--md"], "--json and --md exclude each other. Keep one of them"),
        (["compare", "--open"], "Add --html FILE, or --watch"),
        (["compare", "--port", "8000"], "Add --watch"),
        (["compare", "--watch", "--json"], "--watch and --json exclude each other. Keep one of them"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_invalid_argument_is_an_error_with_advice(with_experiments, arguments, message):
    done = with_experiments.call(*arguments)

    assert (done.code, bool(done.out)) == (2, "--json" in arguments)
    assert message in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "--html"),
        ("plot", "Loss", "--svg"),
        ("data", "--output"),
        ("lr-find", "--output"),
    ],
)
def test_output_that_cannot_be_written_is_an_error_with_advice(finished, arguments, tmp_path):
    refused = finished.call(*arguments, str(tmp_path))

    assert refused.code == 2
    assert refused.err == f"error: {tmp_path} cannot be written: it is a folder. Name another file\n"


def test_standard_output_has_only_the_requested_format_if_a_page_is_written_too(finished):
    written = finished.call("compare", "--json", "--html", "runs.html")

    assert [run["name"] for run in json.loads(written.out)["data"]["runs"]] == ["workspace"]
    assert written.err.startswith("wrote runs.html, ")


def test_output_below_a_file_is_an_error_with_advice(finished, tmp_path):
    (tmp_path / "file").touch()

    refused = finished.call("data", "--output", str(tmp_path / "file/data.png"))

    assert refused.code == 2
    assert refused.err.endswith("data.png cannot be written: File exists. Name another file\n")


def test_notes_report_missing_outputs_and_edited_params(with_experiments, tmp_path):
    copy = with_experiments.copied_to(tmp_path / "bare")
    shutil.rmtree(copy.folder / ".dvc/cache/files")
    copy.edit("params.yaml", "batch_size: 32", "batch_size: 16")

    done = copy.call("compare")

    assert done.code == 0
    assert "workspace: params.yaml was edited since: fit.batch_size" in done.out
    assert "big: not all outputs are in the cache. Run `dvc fetch --all-commits` or" in done.out
    first, *_ = compare(copy)["runs"]
    assert first["params"]["fit.batch_size"] == 32
    assert not first["cached"]


def test_dvc_plots_include_batch_curves_and_the_confusion_matrix(with_experiments):
    shown = json.loads(with_experiments.dvc("plots", "diff", "big", "longer", "--json").out)

    [curve] = shown["data"]["artifacts/plots/iterations/train/Loss.tsv"]
    assert "errors" not in shown
    assert set(curve["revisions"]) == {"big", "longer"}
    assert len(curve["content"]["data"]["values"]) == 2 * 6 + 3 * 12
    assert "share of the class" in json.dumps(shown["data"]["artifacts/plots/confusion.tsv"])


def test_curve_is_plotted_in_the_terminal_and_as_an_image(with_experiments, outcomes, tmp_path):
    curves = outcomes["learner plot Loss"].out
    batches = with_experiments.call("plot", "valid/Loss", "big", "longer", "--iterations").out
    with_experiments.call("plot", "valid/Loss", "big", "longer", "--png", str(tmp_path / "loss.png"))

    assert re.findall(r"^\w+/Loss$", curves, re.MULTILINE) == ["valid/Loss", "train/Loss"]
    assert "━━ workspace  ━━ big  ━━ longer  ━━ <script>" in curves
    assert "134" in batches.splitlines()[-3]  # the last step of three epochs of 45 batches
    assert {"HEAD", "big", "step"} <= set(
        re.findall(r">(\w+)</text>", (with_experiments.folder / "loss.svg").read_text())
    )
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_page_without_vl_convert_is_an_error_with_the_command_to_install_it(with_experiments, tmp_path):
    (tmp_path / "vl_convert.py").write_text("raise ImportError\n")

    done = with_experiments.learner(
        "compare", "--html", str(tmp_path / "page.html"), PYTHONPATH=str(tmp_path)
    )

    assert (done.code, done.out, "Traceback" in done.err) == (1, "", False)
    assert "pip install 'learner-pipeline[page]'" in done.err
    assert not (tmp_path / "page.html").exists()
    without_page = with_experiments.learner("compare", PYTHONPATH=str(tmp_path))
    assert without_page == with_experiments.call("compare")


def test_curve_is_plotted_on_a_terminal_that_cannot_show_its_characters(finished):
    done = finished.learner("plot", "valid/Loss", PYTHONUTF8="0", PYTHONIOENCODING="ascii")

    assert (done.code, done.err) == (0, "")
    assert "?? workspace" in done.out


def test_plot_prints_a_mistake_to_standard_error(with_experiments):
    done = with_experiments.call("plot", "Los")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: no run has a metric 'Los'. Did you mean")


def test_every_learner_command_of_the_readme_succeeds(outcomes):
    assert len(outcomes) >= 5
    assert {command: done.text for command, done in outcomes.items() if done.code} == {}


def test_page_shows_all_runs_and_makes_no_request(page_browser):
    names = page_browser.run("[...document.querySelectorAll('#runs .name')].map(each => each.textContent)")

    assert names == NAMES
    assert page_browser.run("document.querySelectorAll('#curves .card').length") == 2
    assert page_browser.run("typeof broken") == "undefined"
    assert page_browser.messages() == []
    [request] = page_browser.events_of("Network.requestWillBeSent")
    assert request["request"]["url"].startswith("file:")
    assert page_browser.run("document.querySelectorAll('a, link, img, iframe, script[src]').length") == 0
