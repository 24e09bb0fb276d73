"""`learner compare` and `learner plot` of three experiments on the digits."""

import csv
import json
import re
import shlex
import shutil

import pytest
from pages import page

NAMES = ["workspace", "big", "longer", "<script>broken=1<"]


@pytest.fixture(scope="module")
def three(_finished, tmp_path_factory):
    """Return a project with three experiments in addition to the run on HEAD."""
    made = _finished.copied_to(tmp_path_factory.mktemp("three") / "project")
    changes = ("fit.batch_size=64", "fit.num_epochs=3", "fit.seed=7")
    for name, change in zip(NAMES[1:], changes, strict=True):
        made.ok("dvc", "exp", "run", "-q", "-n", name, "-S", change)
        made.ok("git", "checkout", "-q", ".")
    made.ok("dvc", "checkout", "-q")
    return made


@pytest.fixture(scope="module")
def outcomes(three):
    """Run every `learner` command of the page, which write compare.html and loss.svg; return the outcomes."""
    commands = [each for each in page("pipeline/comparison/README.md").commands() if "learner" in each]
    return {each: three.learner(*shlex.split(each)[1:], BROWSER="true") for each in commands}


@pytest.fixture
def opened(outcomes, three, browser):
    """Return a browser that shows the page of all runs."""
    browser.open(three.folder / "compare.html")
    browser.wait("document.body && document.body.dataset.drawn === '1'")
    return browser


def compare(project, *arguments):
    """Return the output of `learner compare --json`."""
    return json.loads(project.learner("compare", "--json", *arguments).out)


def test_every_format_lists_the_workspace_and_all_experiments(three):
    found = compare(three)
    text = three.learner("compare").out
    markdown = three.learner("compare", "--md").out
    table = list(csv.DictReader(three.learner("compare", "--csv").out.splitlines()))

    assert [run["name"] for run in found["runs"]] == NAMES
    assert found["differing"] == ["fit.num_epochs", "fit.batch_size", "fit.seed"]
    assert text.splitlines()[0].split()[:4] == ["run", "num_epochs", "batch_size", "fit.seed"]
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


def test_values_equal_those_in_metrics_json(three):
    [run] = compare(three, "workspace")["runs"]

    written = json.loads((three.folder / "artifacts/metrics.json").read_text())
    for name, measured in run["metrics"].items():
        split, metric = name.split("/")
        assert measured["last"] == pytest.approx(written[split][metric])
    assert run["seconds"] is None or run["seconds"] > 0


def test_runs_are_named_by_any_revision_and_sorted_by_a_key(three):
    sha = three.ok("git", "rev-parse", "HEAD").strip()
    three.ok("git", "tag", "-f", "good")
    three.ok("git", "branch", "-f", "side")

    found = compare(three, "side", "good", sha[:9], "longer", "HEAD~1", "--sort", "epochs", "--reverse")

    assert [run["name"] for run in found["runs"]] == ["longer", "side", "good", sha[:9], "HEAD~1"]
    assert {run["sha"] for run in found["runs"][1:4]} == {sha}
    assert found["first"] == "side"
    assert found["runs"][-1]["metrics"] == {}
    assert found["runs"][-1]["notes"] == ["nothing was run: there is no dvc.lock with params"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "nowhere"], "'nowhere': not an experiment, tag, branch or commit of this repository"),
        (["compare", "--metric", "valid/Los"], "no run has a metric 'valid/Los'. Did you mean 'valid/Loss'?"),
        (
            ["compare", "--sort", "seed"],
            "'seed' is ambiguous. Name one of: build_learner.seed, fit.seed, load_data.seed",
        ),
        (["compare", "--json", "--md"], "--json and --md exclude each other. Keep one of them"),
        (["compare", "--open"], "Add --html FILE"),
        (["plot", "Los"], "Did you mean"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_unknown_name_is_an_error_that_lists_the_known_ones(three, arguments, words):
    done = three.learner(*arguments)

    assert (done.code, done.out) == (2, "")
    assert words in done.err


def test_notes_report_missing_outputs_and_edited_params(three, tmp_path):
    bare = three.copied_to(tmp_path / "bare")
    shutil.rmtree(bare.folder / ".dvc/cache/files")
    bare.edit("params.yaml", "batch_size: 32", "batch_size: 16")

    done = bare.learner("compare")

    assert done.code == 0
    assert "workspace: params.yaml was edited since: fit.batch_size" in done.out
    assert "big: not all outputs are in the cache: `dvc fetch --all-commits` or" in done.out
    first, *_ = compare(bare)["runs"]
    assert first["params"]["fit.batch_size"] == 32
    assert not first["cached"]


def test_dvc_plots_show_the_batches_and_the_confusion_matrix(three):
    shown = json.loads(three.run("dvc", "plots", "diff", "big", "longer", "--json").out)

    [curve] = shown["data"]["artifacts/plots/iterations/train/Loss.tsv"]
    assert "errors" not in shown
    assert set(curve["revisions"]) == {"big", "longer"}
    assert len(curve["content"]["data"]["values"]) == 2 * 23 + 3 * 45
    assert "share of the class" in json.dumps(shown["data"]["artifacts/plots/confusion.tsv"])


def test_curve_is_plotted_in_the_terminal_and_as_an_image(three, outcomes, tmp_path):
    drawn = outcomes["learner plot Loss"].out
    batches = three.learner("plot", "valid/Loss", "big", "longer", "--iterations").out
    three.learner("plot", "valid/Loss", "big", "longer", "--png", str(tmp_path / "loss.png"))

    assert re.findall(r"^\w+/Loss$", drawn, re.MULTILINE) == ["valid/Loss", "train/Loss"]
    assert "━━ workspace  ━━ big  ━━ longer  ━━ <script>" in drawn
    assert "35" in batches.splitlines()[-3]  # the last step of three epochs of twelve batches
    assert {"HEAD", "big", "step"} <= set(
        re.findall(r">(\w+)</text>", (three.folder / "loss.svg").read_text())
    )
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_page_without_vl_convert_is_an_error_with_the_command_to_install_it(three, tmp_path):
    (tmp_path / "vl_convert.py").write_text("raise ImportError\n")

    done = three.learner("compare", "--html", str(tmp_path / "page.html"), PYTHONPATH=str(tmp_path))

    assert (done.code, "Traceback" in done.err) == (1, False)
    assert "pip install 'learner-pipeline[page]'" in done.err
    assert not (tmp_path / "page.html").exists()
    assert three.learner("compare", PYTHONPATH=str(tmp_path)).code == 0


def test_every_learner_command_of_the_page_succeeds(outcomes):
    assert len(outcomes) >= 5
    assert {command: done.text for command, done in outcomes.items() if done.code} == {}


def rows(browser):
    """Return the names in the table of the page, from the top."""
    return browser.run(
        "[...document.querySelectorAll('#runs tbody th')].map(each => each.textContent.trim())"
    )


def strokes(browser):
    """Return the colors of the lines in the first chart."""
    script = """[...document.querySelectorAll('#curves .card:first-child .mark-line path')]
        .map(each => each.getAttribute('stroke'))"""
    return set(browser.run(script))


def run_and_wait(browser, script):
    """Run *script* and wait until the plots are drawn again."""
    before = browser.run("document.body.dataset.drawn")
    browser.run(script)
    browser.wait(f"document.body.dataset.drawn > {before}")


def test_page_sorts_hides_and_switches_views_without_a_request(opened):
    assert rows(opened) == NAMES
    assert len(strokes(opened)) == 4
    assert opened.run("document.querySelectorAll('#confusion .card').length") == 4
    assert opened.run("document.querySelectorAll('#config tbody tr').length") == 3

    sort = "[...document.querySelectorAll('#runs th button')].find(each => each.title === 'epochs').click()"
    run_and_wait(opened, sort)
    run_and_wait(opened, sort)
    assert rows(opened) == ["longer", *(name for name in NAMES if name != "longer")]
    assert (
        opened.run("document.querySelector('#runs th[aria-sort]').getAttribute('aria-sort')") == "descending"
    )

    run_and_wait(opened, "document.querySelector('#runs input[aria-label=\"show big\"]').click()")
    assert len(strokes(opened)) == 3
    assert opened.run("document.querySelectorAll('#confusion .card').length") == 3
    assert "big" not in opened.run("document.querySelector('#config thead').textContent")

    run_and_wait(opened, "document.querySelector('[data-view=iterations]').click()")
    assert opened.run("document.querySelectorAll('#curves canvas').length") == 4
    opened.run("document.getElementById('only-differing').click()")
    assert opened.run("document.querySelectorAll('#config tbody tr').length") > 15

    assert opened.run("typeof broken") == "undefined"
    assert opened.events_of("Runtime.exceptionThrown") == []
    assert opened.events_of("Runtime.consoleAPICalled") == []
    assert opened.events_of("Log.entryAdded") == []
    [request] = opened.events_of("Network.requestWillBeSent")
    assert request["request"]["url"].startswith("file:")
    assert opened.run("document.querySelectorAll('a, link, img, iframe, script[src]').length") == 0
