"""A reader uses the page of 300 runs in a real browser, without an error in its console.

`test_page_model.py` tests what the script computes without a browser; the cases here that take seconds each
are long.
"""

import json

import numpy as np
import pytest
import torch
from long_tests import long

from pipeline.comparison.collection import PlotData
from pipeline.comparison.page import build_content, build_page
from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary, ViewOptions
from stages.contracts.history import Direction
from stages.data.sample_sheet import encode_png
from stages.learner import LearnerBuilder
from stages.metrics import LossMetric
from stages.models import ClassificationStep
from stages.renderers import NoRenderer

COUNT = 300
EPOCHS = 20
ROWS = "[...document.querySelectorAll('#runs tr[data-run]')].map(row => row.dataset.run)"
STATUS = "document.getElementById('status').textContent"
DOT = encode_png(np.full((2, 2), 128, np.uint8))
HOSTILE = "</script><script>broken = 1</script><img src=x onerror='broken = 1'>"


def build_runs():
    """Return the runs, of which the first has no metrics, and their plot data."""
    runs, plots = [RunSummary("workspace", None, {"rate": 0.001, "kind": HOSTILE})], {}
    for number in range(1, COUNT):
        noise = np.random.default_rng(number)
        params = {
            "rate": float(f"{10 ** noise.uniform(-4, -1):.6f}"),
            "kind": str(noise.choice(["adam", "sgd"])),
        }
        losses = (1 + abs(np.log10(params["rate"]) + 2.5) + noise.random(EPOCHS)) / np.arange(1, EPOCHS + 1)
        curves = [
            MetricCurve(split, metric, dict(enumerate((scale * losses).tolist(), start=1)), better)
            for split in ("train", "valid")
            for metric, scale, better in (("Loss", 1, Direction.LOWEST), ("Score", -1, Direction.HIGHEST))
        ]
        name = f"run-{number:03}"
        metrics = {each.name: each for each in curves}
        runs.append(RunSummary(name, f"{number:040x}", params, metrics, EPOCHS, float(number), cached=True))
        cells = [(str(i), str(j), int(noise.integers(9)) + 90 * (i == j)) for i in range(4) for j in range(4)]
        samples = {"valid/epoch-9/text-1.txt": HOSTILE.encode(), "valid/epoch-9/dot-1.png": DOT}
        iterations = {"train/Loss": list(enumerate(noise.random(50).tolist()))}
        plots[name] = PlotData(iterations, cells, samples if number == 1 else {})
    return Comparison(tuple(runs)), plots


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(build_page(*build_runs(), ViewOptions()))
    return path


@pytest.fixture
def reader(page_file, browser):
    """Return a browser that shows the page; check at the end that its console is empty."""
    browser.resize(1400)
    browser.open(page_file)
    browser.wait("document.querySelector('#curves svg')")
    browser.wait("performance.getEntriesByName('first-contentful-paint').length")  # input is ignored before
    yield browser
    assert browser.messages() == []
    assert browser.run("typeof broken") == "undefined"


def read_styles(reader):
    """Return the color and the dash of each line in the first chart of curves."""
    lines = "[...document.querySelectorAll('#curves .card:first-child .mark-line path')]"
    style = "line => line.getAttribute('stroke') + line.getAttribute('stroke-dasharray')"
    return set(reader.run(f"{lines}.map({style})"))


def show(reader, selector):
    """Scroll to the chart in *selector* and wait until it is drawn."""
    reader.hover(selector)
    reader.wait(f"document.querySelector('{selector} svg')")


def test_samples_of_a_ticked_run_are_shown(reader):
    texts = "[...document.querySelectorAll('#samples pre')].map(text => text.textContent)"
    widths = "[...document.querySelectorAll('#samples img')].map(image => image.naturalWidth)"

    assert (reader.run(texts), reader.run(widths)) == ([HOSTILE], [2])


IMAGES, TARGETS = torch.arange(24.0).reshape(2, 1, 3, 4) / 23, torch.tensor([1, 0])
COLOR = torch.tensor([1.0, 0.5, 0.25])[:, None, None]
LOGGED_TEXT = f"line 1\n<b>{'long ' * 60}</b> {'x' * 200}\n"


class Painter(ClassificationStep, torch.nn.Sequential):
    """Logs its inputs as gray and as colored images, and a text of two lines."""

    def forward_classification(self, batch):
        images, _ = batch
        self.log_image("gray", images)
        self.log_image("color", images.repeat(1, 3, 1, 1) * COLOR)
        self.log_text("targets", LOGGED_TEXT)
        return super().forward_classification(batch)


READ_PIXELS = """[...document.querySelectorAll('#samples img')].map(image => {
    const canvas = Object.assign(document.createElement('canvas'), { width: 4, height: 3 });
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    return [...context.getImageData(0, 0, 4, 3).data];
})"""


@pytest.fixture(scope="module")
def logged_samples(tmp_path_factory):
    """Return the samples of a run with two images in the valid split."""
    folder = tmp_path_factory.mktemp("run")
    builder = LearnerBuilder(folder).metrics(LossMetric()).num_epochs(1).renderer(NoRenderer())
    model = Painter(torch.nn.Flatten(), torch.nn.Linear(12, 2))
    learner = builder.build(model, torch.optim.SGD(model.parameters(), 0.1), 0.1)
    learner.fit([(IMAGES, TARGETS)], [(IMAGES, TARGETS)])
    paths = [path for path in sorted(folder.glob("valid/*/*")) if path.suffix != ".log"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), long(390, "light"), long(1400, "dark")])
def test_page_shows_the_pixels_and_texts_that_steps_log(width, scheme, logged_samples, browser, tmp_path):
    metrics = {"valid/Loss": MetricCurve("valid", "Loss", {1: 0.5}, Direction.LOWEST)}
    runs = Comparison((RunSummary("painted", None, {}, metrics),))
    browser.resize(width, 2500, scheme)
    open_page(
        browser, tmp_path / "page.html", (runs, {"painted": PlotData(samples=logged_samples)}, ViewOptions())
    )
    browser.wait("document.images.length === 4 && [...document.images].every(image => image.complete)")

    pixels = (IMAGES.repeat(1, 3, 1, 1) * 255).round()
    colored = (IMAGES.repeat(1, 3, 1, 1) * COLOR * 255).round()
    opaque = torch.full((2, 1, 3, 4), 255.0)
    expected = torch.cat([torch.cat((part, opaque), dim=1) for part in (colored, pixels)])
    assert browser.run(READ_PIXELS) == expected.permute(0, 2, 3, 1).flatten(1).int().tolist()
    assert browser.run("document.querySelector('#samples pre').textContent") == LOGGED_TEXT
    assert browser.run("document.documentElement.scrollWidth") <= width
    styles = "getComputedStyle(document.querySelector('#samples pre'))"
    colors = {"light": "rgb(28, 33, 40)", "dark": "rgb(228, 232, 238)"}
    assert browser.run(f"{styles}.color") == colors[scheme]
    assert browser.messages() == []


def test_filters_change_the_table_and_the_number_of_runs(reader):
    assert reader.run(STATUS) == "300 of 300 runs in the table, 10 ticked"

    reader.write("#search", "kind=sgd")
    reader.wait(f"{STATUS} !== '300 of 300 runs in the table, 10 ticked'")
    sgd = reader.run("table.params.kind.filter(each => each === 'sgd').length")
    assert reader.run(STATUS).startswith(f"{sgd} of 300 runs")

    reader.choose("#range-column", "rate")
    reader.write(".range input:last-of-type", "0.01")
    reader.wait(f"!{STATUS}.startsWith('{sgd} ')")
    assert reader.run("Math.max(...listedRuns().map(run => columnOf(table, 'rate').order[run]))") <= 0.01

    reader.write("#best-count", "5")
    reader.wait(f"{STATUS}.startsWith('5 of 300 runs')")
    assert reader.run(ROWS)[0] == "run-001"  # the baseline stays in the first row
    assert len(reader.run(ROWS)) in (5, 6)

    reader.click("button[type=reset]")
    reader.wait(f"{STATUS}.startsWith('300 of 300')")
    assert reader.run("document.querySelectorAll('.range').length") == 0
    assert reader.run("document.getElementById('search').value") == ""


def test_table_sorts_groups_and_shows_deltas_to_the_pinned_run(reader):
    assert reader.run("document.getElementById('baseline').textContent") == "run-001"

    reader.click("th[data-key='valid/Loss best'] button")
    reader.wait("document.querySelector('#runs th[aria-sort=ascending]')")
    losses = reader.run("columnOf(table, 'valid/Loss best').order")
    first = reader.run(ROWS)[1]
    assert reader.run(f"table.runs.findIndex(run => run.name === '{first}')") == int(
        np.nanargmin([np.nan if each is None else each for each in losses])
    )

    reader.click(f"tr[data-run='{first}'] .pin")
    reader.wait(f"document.getElementById('baseline').textContent === '{first}'")
    deltas = reader.run("""listedRuns().map(run => delta(table, 'valid/Loss', run, baselineRun()))
        .filter(each => each !== null)""")
    assert min(deltas) == 0
    assert len(deltas) == COUNT - 1

    reader.choose("#group", "kind")
    reader.wait("document.querySelectorAll('#runs tr.group').length === 3")
    assert reader.run("document.querySelector('tr.group button').textContent").startswith("kind = </script>")
    reader.click("#runs tbody:last-of-type tr.group button")
    reader.wait("document.querySelectorAll('#runs tbody:last-of-type tr').length === 1")


@pytest.mark.long
def test_count_and_means_of_a_group_include_the_baseline(reader):
    kind = reader.run("table.params.kind[baselineRun()]")
    reader.write("#search", "run-00")  # nine runs, of which the first is the baseline
    reader.choose("#group", "kind")
    reader.wait(f"{STATUS}.startsWith('9 of') && document.querySelectorAll('#runs tr.group').length === 2")

    group = f"[...document.querySelectorAll('tr.group')].find(row => row.textContent.includes('{kind}'))"
    expected = reader.run(f"""(() => {{
        const runs = listedRuns().filter(run => table.params.kind[run] === '{kind}');
        return `kind = {kind} (${{runs.length}})` + runs.map(run => columnOf(table, 'valid/Loss').order[run])
            .reduce((sum, value) => sum + value / runs.length, 0).toFixed(3);
    }})()""")
    heads = reader.run("[...document.querySelectorAll('#runs thead th')].map(each => each.dataset.key)")
    mean = f"{group}.cells[{heads.index('valid/Loss')}]"
    assert reader.run(f"{group}.cells[0].textContent + {mean}.textContent") == expected
    assert reader.run(ROWS).count("run-001") == 1


@pytest.mark.long
def test_only_ticked_runs_have_curves_and_each_has_its_own_style(reader):
    assert len(read_styles(reader)) == 10

    reader.click("#tick-all")
    reader.wait(f"{STATUS}.endsWith('60 ticked, at most 60')")
    reader.wait("document.querySelectorAll('#curves .card:first-child .mark-line path').length > 200")
    assert len(read_styles(reader)) == 60

    reader.click("#tick-all")
    reader.wait(f"{STATUS}.endsWith(', 0 ticked')")
    reader.wait("!document.querySelector('#curves svg')")

    reader.click("tr[data-run=run-007] input")
    reader.wait("document.querySelectorAll('#curves svg').length === 2")
    assert reader.run("document.querySelectorAll('#curves .card:first-child .mark-line path').length") == 4

    reader.click("#tab-iterations")
    reader.wait("document.querySelector('#curves canvas')")
    assert reader.run("document.querySelector('#curves h3').textContent") == "Loss, train"


@pytest.mark.long
def test_curve_shows_its_values_when_the_mouse_is_over_it(reader):
    reader.hover("#curves .card:first-child svg")
    reader.wait("document.querySelector('#vg-tooltip-element.visible')")
    assert "run-002 valid" in reader.run("document.querySelector('#vg-tooltip-element').textContent")


@pytest.mark.long
def test_scatter_and_parallel_coordinates_follow_the_choices(reader):
    show(reader, "#scatter")
    points = "document.querySelectorAll('#scatter .mark-symbol path').length"
    assert reader.run(points) == COUNT - 1
    assert reader.run("document.getElementById('scatter-x').value") == "rate"  # the most important param

    ticked = reader.run("state.styles.size")
    reader.click("#scatter .mark-symbol path")
    reader.wait(f"state.styles.size !== {ticked}")

    reader.choose("#scatter-x", "kind")
    reader.wait(
        "document.querySelector('#scatter .role-axis-title text, #scatter').textContent.includes('sgd')"
    )

    show(reader, "#parallel")
    assert reader.run("document.querySelectorAll('#parallel .mark-line path').length") == COUNT - 1
    reader.click(".card details summary")
    reader.run(
        "[...document.querySelectorAll('#axes label')].find(each => each.textContent === 'time').click()"
    )
    reader.wait("document.getElementById('parallel').textContent.includes('time')")

    assert reader.run(
        "[...document.querySelectorAll('#importance tbody th')].map(each => each.textContent)"
    ) == ["rate", "kind"]


@pytest.mark.long
def test_confusion_matrices_of_two_runs_and_their_difference_are_side_by_side(reader):
    show(reader, "#confusion .card:last-child")
    titles = "[...document.querySelectorAll('#confusion h3')].map(each => each.textContent)"
    assert reader.run(titles) == ["run-001", "run-002", "Second minus first"]

    reader.choose("#matrix-second", "run-150")
    reader.wait(f"({titles})[1] === 'run-150'")
    tops = reader.run(
        "[...document.querySelectorAll('#confusion .card')].map(each => each.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == 1
    cells = reader.run("differingCells(...[1, 150].map(run => matrixCells(table, plotsData(), run)))")
    assert all(cell["difference"] == cell["count"] - cell["base"] for cell in cells)
    assert len(cells) == 16


@pytest.mark.long
def test_keyboard_ticks_moves_and_pins(reader):
    active = "document.activeElement.getAttribute('aria-label')"
    reader.run("document.querySelector('#runs tr[data-run] input').focus()")

    reader.press("ArrowDown", 40)
    reader.press("ArrowDown", 40)
    assert reader.run(active) == "Curves for run-002"
    for key, code, text in ((" ", 32, " "), ("Enter", 13, "\r")):
        before = reader.run("state.styles.has('run-002')")
        reader.press(key, code, text)
        reader.wait(f"state.styles.has('run-002') !== {json.dumps(before)}")
        reader.wait(f"!scheduled && {active} === 'Curves for run-002'")  # the focus stays

    reader.press("ArrowRight", 39)
    reader.press("Enter", 13, "\r")
    reader.wait("document.getElementById('baseline').textContent === 'run-002'")
    assert reader.run("document.querySelectorAll('#runs tr[data-run] [tabindex=\"0\"]').length") == 1
    assert reader.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"

    reader.run("document.getElementById('tab-epochs').focus()")
    reader.press("ArrowRight", 39)
    reader.wait("document.activeElement.id === 'tab-iterations' && view === 'iterations'")


@pytest.mark.long
def test_controls_and_charts_have_names_for_screen_readers(reader):
    unnamed = reader.run("""[...document.querySelectorAll('input, select, button')].filter(each =>
        !each.getAttribute('aria-label') && !each.textContent.trim() && !each.labels?.length).length""")
    assert unnamed == 0
    assert (
        reader.run("document.querySelectorAll('table:not(:has(caption)):not([aria-labelledby])').length") == 0
    )
    assert reader.run("document.querySelectorAll('th:not([scope])').length") == 0
    assert reader.run("document.getElementById('status').getAttribute('aria-live')") == "polite"
    assert "Loss by epoch of 10 runs" in reader.run(
        "document.querySelector('#curves svg').parentElement.parentElement.innerHTML"
    )


@pytest.mark.parametrize(
    ("width", "scheme"), [(1400, "light"), long(1400, "dark"), long(600, "light"), long(600, "dark")]
)
def test_page_fits_and_draws_every_chart(reader, width, scheme):
    reader.resize(width, 6000, scheme)
    reader.wait("[...charts.values()].every(chart => chart.near && !chart.stale && chart.view)")

    assert reader.run("document.documentElement.scrollWidth") <= width
    assert reader.run("document.querySelectorAll('.plot svg').length") == 7
    name = "#runs tbody:last-of-type tr:last-of-type th"
    left = f"document.querySelector('{name}').getBoundingClientRect().left"
    before = reader.run(left)
    reader.run("document.getElementById('runs-scroll').scrollLeft = 200")
    assert reader.run(left) == before  # the first column stays
    if width == 600:
        reader.wait("document.getElementById('runs-more').textContent.startsWith('Scroll the table for ')")
    background = reader.run("getComputedStyle(document.documentElement).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]


@pytest.mark.parametrize(
    "losses", [[], long([float("nan")] * 3), long([float("inf"), 1.0, 1.0]), [1e300, 1.0, -1e300]]
)
def test_page_of_runs_without_values_or_batches_has_no_error(browser, tmp_path, losses):
    metrics = {}
    if losses:
        series = dict(enumerate(losses, start=1))
        metrics["valid/F1 [a.b]"] = MetricCurve("valid", "F1 [a.b]", series, Direction.HIGHEST)
    runs = tuple(RunSummary(name, None, {"a.b[0]": name}, metrics) for name in ("a.b", "x.y['z']"))
    page = tmp_path / "page.html"
    page.write_text(build_page(Comparison(runs), {}, ViewOptions()))
    idle = "!scheduled && [...charts.values()].every(chart => !chart.near || !chart.stale)"

    browser.resize(1000, 5000)
    browser.open(page)
    browser.wait("document.body && document.body.dataset.drawn && document.querySelector('#scatter > *')")
    for tab in ("iterations", "epochs"):
        browser.run(f"document.getElementById('tab-{tab}').click()")
        browser.wait(f"view === '{tab}' && {idle}")
    browser.choose("#group", "a.b[0]")
    browser.wait(f"document.querySelector('tr.group') && {idle}")

    assert browser.messages() == []


def build_data(*losses, rates=(0.1, 0.2)):
    """Return the data of runs "a" and "b" with these losses, None for a run without metrics."""
    runs = []
    for name, loss, rate in zip("ab", losses, rates, strict=True):
        curve = MetricCurve("valid", "Loss", {1: loss}, Direction.LOWEST)
        runs.append(RunSummary(name, None, {"rate": rate}, {} if loss is None else {curve.name: curve}))
    return Comparison(tuple(runs)), {}, ViewOptions()


def open_page(browser, path, data):
    """Show the page with *data*, which the file *path* then contains."""
    path.write_text(build_page(*data))
    browser.open(path)
    browser.wait("document.body && document.body.dataset.drawn")


def update(browser, data):
    """Give the page newer *data*, as `learner compare --watch` does, and wait until it shows them."""
    browser.run(f"update({build_content(*data).json})")
    browser.wait("!scheduled")


def test_baseline_follows_newer_data_until_the_reader_pins_one(browser, tmp_path):
    baseline = "document.getElementById('baseline').textContent"
    open_page(browser, tmp_path / "page.html", build_data(None, None))
    assert browser.run(baseline) == "a"

    update(browser, build_data(None, 0.5))
    assert browser.run(baseline) == "b"

    browser.click("tr[data-run=b] .pin")
    update(browser, build_data(0.7, 0.5))
    assert browser.run(baseline) == "b"


def test_axis_of_two_epochs_names_each_epoch_once(browser, tmp_path):
    curve = MetricCurve("valid", "Loss", {1: 0.7, 2: 0.5}, Direction.LOWEST)
    run = RunSummary("a", None, {}, {curve.name: curve})
    labels = "[...document.querySelectorAll('#curves .role-axis-label text')].map(label => label.textContent)"

    open_page(browser, tmp_path / "page.html", (Comparison((run,)), {}, ViewOptions()))
    browser.wait("document.querySelector('#curves .role-axis-label text')")

    epochs = [label for label in browser.run(labels) if label and "." not in label]
    assert epochs == ["1", "2"]


def test_range_of_a_param_that_no_longer_differs_is_removed(browser, tmp_path):
    open_page(browser, tmp_path / "page.html", build_data(0.7, 0.5))
    for column in ("rate", "valid/Loss"):
        browser.choose("#range-column", column)

    update(browser, build_data(0.7, 0.5, rates=(0.1, 0.1)))

    labels = "[...document.querySelectorAll('#ranges legend')].map(each => each.textContent)"
    assert browser.run(labels) == ["Range of valid/Loss, last"]
    assert browser.run("state.ranges.map(each => each.key)") == ["valid/Loss"]
