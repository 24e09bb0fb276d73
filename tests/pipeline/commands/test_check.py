"""`learner check` reports mistakes beyond the values in params.yaml."""

import json
import re
import sys

import pytest

from pipeline.project.check import END, PARAMS, find_late_mistakes, main
from pipeline.project.dependencies import find_missing_deps
from pipeline.project.git import run_git
from pipeline.project.params import are_metrics_known, read_params
from pipeline.project.yaml_files import read_definition, read_yaml

USER_FILES = {
    "failing.py": "1 / 0",
    "exiting.py": "import sys\nsys.exit('no licence')",
    "crashing.py": "import os\nos._exit(3)",
    "values.py": "x = 1",
    "mine.py": """
def rings(count, *, noise=0, path=None): ...

class Net:
    def __init__(self, num_classes, width): ...

class Up:
    def __init__(self, optimizer): ...
""",
}
MODEL = "kind: cnn\n    dropout: 0.5"
SOURCE = "kind: digits\n    path: null"
METRICS = "[loss, accuracy]"
SEQUENTIAL = """schedule:
    kind: "torch.optim.lr_scheduler:SequentialLR"
    per: epoch
    milestones: [2]
    schedulers:
    - {kind: "no_such_module:Up"}
    - {kind: "torch.optim.lr_scheduler:LinearLR"}"""
KEEP = "keep: {best: [{metric: Accuracy, direction: highest}]}"
PART_MISTAKES = {
    "divisor of the inputs is 0": (
        "num_epochs:",
        "batcher: {kind: normalize, std: 0}\n  num_epochs:",
        "fit.batcher: batcher: std must be finite and above 0; found 0. Divide equal values by 1",
    ),
    "module of the model is missing": (
        MODEL,
        'kind: "no_such_module:Net"',
        "build_learner.model: model 'no_such_module:Net' cannot be imported",
    ),
    "class of the model is missing": (
        MODEL,
        'kind: "mine:Ned"',
        "build_learner.model: model 'mine:Ned' cannot be found: 'mine' imports, but has no 'Ned'. Did you",
    ),
    "module of the model raises an exception": (MODEL, 'kind: "failing:Net"', "ZeroDivisionError"),
    "module of the model calls sys.exit": (MODEL, 'kind: "exiting:Net"', "build_learner.model: "),
    "model is not a class": (
        MODEL,
        'kind: "values:x"',
        "build_learner.model: model 'values:x' must name a class or a function; found int",
    ),
    "model without a required argument": (
        MODEL,
        'kind: "mine:Net"',
        "build_learner.model: model 'mine:Net' cannot be built: the argument 'width' is missing",
    ),
    "optimizer with an unknown argument": (
        "kind: adam\n",
        "kind: adamax\n    weight_deacy: 0.1\n",
        "build_learner.optimizer: optimizer 'adamax' cannot be built: unknown argument 'weight_deacy'. Did",
    ),
    "optimizer with an invalid argument": (
        "kind: adam\n",
        "kind: torch.optim:Adam\n    betas: [0.9, 2]\n",
        "build_learner.optimizer: optimizer 'torch.optim:Adam' cannot be built: ValueError: Invalid beta",
    ),
    "schedule with an unknown argument": (
        "kind: constant",
        "kind: one_cycle\n    per: batch\n    max_rl: 0.1",
        "build_learner.schedule: schedule 'one_cycle' cannot be built: unknown argument 'max_rl'. Did you",
    ),
    "source with an unknown argument": (
        SOURCE,
        'kind: "mine:rings"\n    count: 3\n    nois: 1',
        "load_data.source: source 'mine:rings' cannot be built: unknown argument 'nois'",
    ),
    "dataset with an unknown argument": (
        SOURCE,
        'kind: dataset\n    factory: {kind: "mine:rings", count: 3, nois: 1}',
        "load_data.source.factory: dataset 'mine:rings' cannot be built: unknown argument",
    ),
    "module of the batcher is missing": (
        "num_epochs:",
        'batcher: "no_such_module:stack"\n  num_epochs:',
        "fit.batcher: batcher 'no_such_module:stack' cannot be imported",
    ),
    "batcher is not a function": (
        "num_epochs:",
        'batcher: "values:x"\n  num_epochs:',
        "fit.batcher: the batcher must be a function or have a method batch(items); found the type int",
    ),
    "module of an augmentation is missing": (
        "num_epochs:",
        'augment: [horizontal_flip, "no_such_module:Crop"]\n  num_epochs:',
        "fit.augment.1: augmentation 'no_such_module:Crop' cannot be imported",
    ),
    "module of the metric is missing": (
        METRICS,
        '[loss, "no_such_module:F1"]',
        "fit.metrics.1: metric 'no_such_module:F1' cannot be imported",
    ),
    "metric with an unknown argument": (
        METRICS,
        "[loss, {kind: top_k, n: 2}]",
        "fit.metrics.1: metric 'top_k' cannot be built: ",
    ),
    "metric with an invalid argument": (
        METRICS,
        "[loss, {kind: top_k, k: 0}]",
        "fit.metrics.1: top-k accuracy",
    ),
    "class is not a metric": (
        METRICS,
        '[loss, "pathlib:Path"]',
        "fit.metrics.1: metric 'pathlib:Path' is a ",
    ),
    "device is not available": (
        "device: auto",
        "device: cuda:9",
        "fit.device: this machine has no device 'cuda:9': use one of auto",
    ),
    "module of a part of a schedule is missing": (
        "schedule:\n    kind: constant",
        SEQUENTIAL,
        "build_learner.schedule: schedule 'no_such_module:Up' cannot be imported",
    ),
}
MISTAKES = {
    "schedule without the unit of a step": (
        "kind: constant",
        "kind: cosine_annealing\n    T_max: 9",
        "build_learner.schedule: set per to batch or epoch, after which cosine_annealing makes a step",
    ),
    "argument of an augmentation is invalid": (
        "num_epochs:",
        "augment: [{kind: random_crop, padding: -1}]\n  num_epochs:",
        "fit.augment.0.padding: must be an integer from 0 to 1000000000",
    ),
    "data is missing": (
        SOURCE,
        "kind: npz\n    path: no/such.npz",
        "load_data.source.path: the file or folder 'no/such.npz' does not exist. Correct the path",
    ),
    "data tracked by DVC is missing": (
        SOURCE,
        "kind: npz\n    path: raw/digits.npz",
        "load_data.source.path: the file or folder 'raw/digits.npz' does not exist. Run `dvc pull raw.dvc`",
    ),
    "one of two files is missing": (
        SOURCE,
        "kind: npy\n    inputs: mine.py\n    targets: no/y.npy",
        "load_data.source.targets: the file or folder 'no/y.npy' does not exist. Correct the path",
    ),
    "checkpoint is missing": (
        "build_learner:\n",
        "build_learner:\n  checkpoint: {path: old, epoch: 1}\n",
        "build_learner.checkpoint.path: the file or folder 'old' does not exist. Correct the path",
    ),
    "recorder of another file format": (
        "recorder: default",
        "recorder: pretty_json",
        "save_model.recorder: 'pretty_json' writes files that end in .json; found vars.paths.model: art",
    ),
    "section is missing": (
        "save_model:\n  recorder: default\n  exports: []\n  epoch: last\n",
        "",
        "save_model: the key is missing, and the stage save-model in dvc.yaml tracks it. Add 'save_model:",
    ),
}


@pytest.fixture(scope="module")
def checked_out_project(tmp_path_factory, checked_out):
    """Return a project with modules of a user, and with data that DVC tracks and has not fetched."""
    project = checked_out(tmp_path_factory.mktemp("checked") / "project")
    for name, text in USER_FILES.items():
        (project.folder / name).write_text(text)
    (project.folder / "raw.dvc").write_text("outs:\n- path: raw\n")
    return project


@pytest.fixture
def project(checked_out_project):
    """Return a project with modules of a user; its params and its dvc.yaml are restored after the test."""
    before = checked_out_project.files("params.yaml", "dvc.yaml")
    yield checked_out_project
    for name, content in before.items():
        (checked_out_project.folder / name).write_bytes(content)


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES.values(), ids=MISTAKES)
def test_check_reports_a_mistake_that_would_fail_a_run_later(old, new, message, project):
    project.edit("params.yaml", old, new)

    refused = project.call("check")

    assert refused.code == 2, refused.text
    first, line, *more = refused.err.splitlines()
    assert first == "error: params.yaml is not valid:"
    assert message in line
    assert all(each.startswith("    ") for each in more), refused.err


@pytest.fixture
def try_parts(project, tmp_path, monkeypatch):
    """Return a function that returns the mistakes that the separate process of the check would find."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run():
        main(str(tmp_path / "result"))
        entries = [json.loads(line) for line in (tmp_path / "result").read_text().splitlines()]
        assert entries[-1] == END
        return [f"{where}: {mistake}" for where, mistake in entries if mistake]

    yield run
    for name in USER_FILES:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize(("old", "new", "message"), PART_MISTAKES.values(), ids=PART_MISTAKES)
def test_part_that_cannot_be_used_is_a_mistake(old, new, message, project, try_parts):
    project.edit("params.yaml", old, new)

    [mistake] = try_parts()

    assert message in mistake


ONE_OF_EACH_PART = (
    "source with an unknown argument",
    "model without a required argument",
    "optimizer with an unknown argument",
    "schedule with an unknown argument",
    "module of the batcher is missing",
    "module of an augmentation is missing",
    "module of the metric is missing",
    "device is not available",
)


@pytest.mark.long  # test_part_that_cannot_be_used_is_a_mistake, and the next test for the process
def test_check_reports_the_mistakes_of_all_parts_together(project):
    for name in ONE_OF_EACH_PART:
        old, new, _ = PART_MISTAKES[name]
        project.edit("params.yaml", old, new)

    refused = project.call("check")

    imports, first, *lines = refused.err.splitlines()
    assert imports.startswith("importing mine:rings, mine:Net, ")
    assert (refused.code, first) == (2, "error: params.yaml is not valid:")
    mistakes = [line for line in lines if not line.startswith("    ")]
    for name, mistake in zip(ONE_OF_EACH_PART, mistakes, strict=True):
        assert PART_MISTAKES[name][2] in mistake


def test_check_reports_a_part_whose_import_ends_the_process_after_the_mistakes_before_it(project):
    old, new, message = PART_MISTAKES["source with an unknown argument"]
    project.edit("params.yaml", old, new)
    project.edit("params.yaml", MODEL, 'kind: "crashing:Net"')

    refused = project.call("check")

    _, _, first, *_, last = refused.err.splitlines()
    assert refused.code == 2
    assert message in first
    assert last.startswith("  build_learner.model: the import ended its process with exit code 3")


VALID_PARTS = {
    "a source with a URL": (SOURCE, 'kind: "mine:rings"\n    count: 3\n    path: "s3://bucket/data"'),
    "a model of the user": (MODEL, 'kind: "mine:Net"\n    width: 3'),
    "a metric with arguments": (METRICS, "[loss, {kind: top_k, k: 2}]"),
}


@pytest.mark.parametrize(("old", "new"), VALID_PARTS.values(), ids=VALID_PARTS)
def test_valid_part_is_not_a_mistake(old, new, project, try_parts):
    project.edit("params.yaml", old, new)

    assert try_parts() == []


@pytest.mark.parametrize("source", ["kind: npz\n    path: made/data.npz", "kind: idx\n    path: made"])
def test_check_accepts_an_output_of_another_stage_that_does_not_exist_yet(source, project):
    project.edit("params.yaml", SOURCE, source)
    project.edit(
        "dvc.yaml",
        "stages:\n",
        "stages:\n  make:\n    cmd: make\n    outs: [{made/data.npz: {cache: false}}]\n\n",
    )

    checked = project.call("check")

    assert checked.err == ""
    assert checked.code == (1 if "would not rerun" in checked.out else 0), checked.text


@pytest.mark.parametrize(
    ("dep", "reported"),
    [
        ("stages/modle", "Correct the path"),
        ("raw/digits.npz", "Run `dvc pull raw.dvc`"),
        ("data/prepared/dataset.json", ""),
        ("s3://bucket/data", ""),
        ("made/data.npz", ""),
    ],
)
def test_check_reports_a_dep_that_neither_exists_nor_is_written(dep, reported, project):
    """The folder `made` has a dvc.yaml of its own, whose stages may write the file."""
    (project.folder / "made").mkdir(exist_ok=True)
    (project.folder / "made/dvc.yaml").write_text("stages: {}\n")
    project.edit("dvc.yaml", "      - stages/data/sources\n", f"      - stages/data/sources\n      - {dep}\n")

    checked = project.call("check")

    line = f"dvc.yaml: {dep}, in the deps of load-data, does not exist, and no stage writes it. {reported}\n"
    expected = (1, line) if reported else (0, "params.yaml is valid\n")
    assert (checked.code, checked.out) == expected, checked.text


@pytest.mark.parametrize("dep", ["raw", "raw/digits.npz"])
def test_check_reports_missing_data_in_params_and_deps_once(dep, project):
    project.edit("dvc.yaml", "      - stages/data/sources\n", f"      - stages/data/sources\n      - {dep}\n")
    project.edit("params.yaml", SOURCE, "kind: npz\n    path: raw/digits.npz")

    checked = project.call("check")

    assert checked.text.count("does not exist") == 1, checked.text
    assert checked.err.splitlines()[1].startswith("  load_data.source.path: the file or folder 'raw/dig")


def test_check_reports_no_missing_file_beside_another_pipeline_that_may_write_it(project):
    (project.folder / "other").mkdir()
    (project.folder / "other/dvc.yaml").write_text("stages: {}\n")
    run_git(project.folder, "add", "other/dvc.yaml")
    project.edit("dvc.yaml", "      - stages/data/sources\n", "      - stages/data/sources\n      - no.csv\n")

    checked = project.call("check")
    run_git(project.folder, "rm", "--cached", "other/dvc.yaml")

    assert checked.code == 0, checked.text


@pytest.mark.parametrize("key", ["wdir: .", "matrix: {x: [1]}", "vars: [{x: 1}]", "frozen: true"])
def test_check_reports_no_missing_file_that_dvc_may_not_read_there(key, project):
    project.edit(
        "dvc.yaml", "stages:\n", f"stages:\n  make:\n    {key}\n    cmd: make\n    deps: [no.csv]\n\n"
    )

    assert project.call("check").code == 0


def test_check_reports_the_missing_dep_of_each_file_of_a_source(project):
    project.edit("params.yaml", SOURCE, "kind: npy\n    inputs: mine.py\n    targets: values.py")

    checked = project.call("check")

    assert checked.code == 1, checked.text
    for name in ("mine.py", "values.py"):
        assert f"an edit of {name} would not rerun load-data; add to its deps:\n      - {name}" in checked.out


def test_check_accepts_a_dep_that_is_a_reference_to_an_output_of_another_stage(project):
    project.edit("params.yaml", SOURCE, "kind: npz\n    path: data/made.npz")
    project.edit(
        "dvc.yaml", "      data: data/prepared\n", "      data: data/prepared\n      made: data/made.npz\n"
    )
    project.edit(
        "dvc.yaml",
        "      - stages/data/sources\n",
        "      - stages/data/sources\n      - ${paths.made}\n",
    )
    project.edit("dvc.yaml", "stages:\n", "stages:\n  make:\n    cmd: make\n    outs: ['${paths.made}']\n\n")

    checked = project.call("check")

    assert (checked.code, checked.out) == (0, "params.yaml is valid\n"), checked.text


def test_check_reports_rules_that_need_a_valid_split_that_params_leave_out(project):
    project.edit("params.yaml", "valid_fraction: 0.2", "valid_fraction: 0")
    project.edit(
        "params.yaml",
        "  num_epochs: 20",
        f"  num_epochs: 20\n  early_stopping: {{n_epochs: 2}}\n  {KEEP}",
    )

    project.edit("params.yaml", "kind: constant", "kind: reduce_on_plateau\n    monitor: valid Loss")

    refused = project.call("check")

    assert refused.code == 2, refused.text
    monitored = {
        "fit.early_stopping": "Loss",
        "fit.keep.best.0": "Accuracy",
        "build_learner.schedule.monitor": "Loss",
    }
    for key, metric in monitored.items():
        assert (
            f"{key}: uses the valid '{metric}', but load_data.valid_fraction is 0 and the source"
            in refused.err
        )
    project.edit("params.yaml", "valid_fraction: 0", "valid_fraction: 0\n  folds: 3")
    assert project.call("check").code == 0  # a fold is a valid split
    project.edit("params.yaml", "\n  folds: 3", "")
    project.edit("params.yaml", "n_epochs: 2}", "n_epochs: 2, split: train}")
    project.edit("params.yaml", "direction: highest}", "direction: highest, split: train}")
    project.edit("params.yaml", "monitor: valid Loss", "monitor: train Loss")
    assert project.call("check").code == 0


def test_check_reports_a_missing_shard_of_weights(project):
    (project.folder / "weights").mkdir(exist_ok=True)
    (project.folder / "weights/model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "model-1.safetensors"}}'
    )
    project.edit(
        "params.yaml", MODEL, f"{MODEL}\n  checkpoint: {{path: weights/model.safetensors.index.json}}"
    )

    refused = project.call("check")

    assert refused.code == 2, refused.text
    assert "'weights/model-1.safetensors' does not exist. Correct the path" in refused.err


def test_check_reports_the_missing_dep_of_a_part_of_a_schedule(project, monkeypatch):
    monkeypatch.chdir(project.folder)
    project.edit("params.yaml", "schedule:\n    kind: constant", SEQUENTIAL.replace("no_such_module", "mine"))

    lines = find_missing_deps(read_params())

    line = "dvc.yaml: an edit of mine.py would not rerun build-learner; add to its deps:\n      - mine.py"
    assert line in lines


INDEXED = "kind: image_folder\n    path: raw_images\n  materialize: {}"


@pytest.mark.parametrize(
    ("materialize", "written", "stages"),
    [
        ("tensors", '{"index": {}}', ["load-data"]),
        ("auto", "{}", ["load-data"]),
        ("auto", '{"index": {}}', ["load-data", "fit"]),
        ("index", "{}", ["load-data", "fit"]),
    ],
)
def test_check_reports_the_missing_dep_of_each_stage_that_reads_images(project, materialize, written, stages):
    project.edit("params.yaml", SOURCE, INDEXED.format(materialize))
    dataset = project.folder / "data/prepared/dataset.json"
    for folder in (dataset.parent, project.folder / "raw_images"):
        folder.mkdir(parents=True, exist_ok=True)
    dataset.write_text(written)

    checked = project.call("check")

    found = re.findall(
        r"an edit of raw_images would not rerun (\S+); add to its deps:\n      - raw_images", checked.out
    )
    assert (checked.code, found) == (1, stages), checked.text


UNTRACKED = {
    "section": (
        "      - load_data\n",
        "",
        "load_data.source.kind, load_data.source.path, load_data.valid_fraction",
    ),
    "keys of a section": (
        "      - fit\n",
        "      - fit.seed\n      - fit.metrics\n",
        "fit.batch_size, fit.num_thr",
    ),
    "all params": (
        "      - params.yaml:  # all of it\n",
        "      - fit\n",
        "create_artifact_dir.keep, load_data.",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), UNTRACKED.values(), ids=UNTRACKED)
def test_param_that_a_stage_reads_and_does_not_track_is_a_mistake(old, new, message, project):
    project.edit("dvc.yaml", old, new)

    refused = project.call("check")

    assert refused.code == 2
    assert message in refused.err


@pytest.mark.parametrize(
    ("augment", "key"),
    [("[{kind: random_crop, size: [6, 6]}]", "fit.augment"), ("[{kind: random_crop, padding: 1}]", None)],
)
def test_key_that_the_run_cache_ignores_is_a_mistake_if_its_entries_are_not_removed(augment, key, project):
    project.edit("params.yaml", "  num_epochs: 20", f"  num_epochs: 20\n  augment: {augment}")
    assert project.call("check").ok()
    project.edit("dvc.yaml", "persist: true", "persist: false")

    done = project.call("check")

    assert (f"  {key}: DVC's run-cache ignores keys of this name" in done.err) is (key is not None)


def test_keys_of_a_section_may_be_tracked_one_by_one_without_those_that_change_no_number(project):
    keys = "".join(f"      - fit.{name}\n" for name in ("batch_size", "seed", "num_threads", "portable"))
    tracked = f"{keys}      - fit.grads_accumulation\n      - fit.metrics\n"
    project.edit("dvc.yaml", "      - fit\n", tracked)

    assert project.call("check").out == "params.yaml is valid\n"


BAD_NAMES = """class Named:
    unit = None

    def __init__(self, name):
        self.name = name

    def measure(self, output):
        return None
"""
CONTRADICTIONS = {
    "best epoch is not kept": (
        [("  epoch: last", "  epoch: best"), ("  num_epochs: 20", f"  num_epochs: 20\n  {KEEP}")],
        "save_model.epoch: the epoch with the lowest valid 'Loss' would be removed by fit.keep, which keeps",
    ),
    "schedule ends before the run": (
        [("kind: constant", "kind: one_cycle\n    per: epoch\n    max_lr: 0.1\n    total_steps: 19")],
        "build_learner.schedule.total_steps: the schedule ends after 19 steps, one per epoch, but fit.num_ep",
    ),
    "schedule changes a momentum that the optimizer lacks": (
        [
            ("kind: constant", "kind: one_cycle\n    per: batch\n    max_lr: 0.1\n    total_steps: 900"),
            ("kind: adam", "kind: adagrad"),
            ("portable: true", "portable: false"),
        ],
        "build_learner.schedule: one_cycle changes the momentum, which adagrad does not have",
    ),
    "early stopping monitors no metric": (
        [("  num_epochs: 20", "  num_epochs: 20\n  early_stopping: {n_epochs: 2, metric: Acuracy}")],
        "fit.early_stopping: MetricEarlyStopping uses the valid 'Acuracy', which is not registered",
    ),
    "retention monitors no metric": (
        [("  num_epochs: 20", f"  num_epochs: 20\n  {KEEP}"), (METRICS, "[loss]")],
        "fit.keep.best.0: KeepBest uses the valid 'Accuracy', which is not registered as a number",
    ),
    "plateau monitors no metric": (
        [("kind: constant", "kind: reduce_on_plateau\n    monitor: train MAE")],
        "build_learner.schedule.monitor: Plateau uses the train 'MAE', which is not registered",
    ),
    "model has no output for a metric": (
        [(METRICS, "[loss, mae]")],
        "fit.metrics: metric 'MAE' measures RegressionOutput, but Cnn.train_step returns Classification",
    ),
    "name with a slash": (
        [(METRICS, '[loss, {kind: "names:Named", name: "Loss/Valid"}]')],
        "fit.metrics: a metric is named 'Loss/Valid', which cannot be the name of a file",
    ),
    "names of one file": (
        [(METRICS, '[loss, {kind: "names:Named", name: "A b"}, {kind: "names:Named", name: A_b}]')],
        "fit.metrics: metrics 'A b' and 'A_b' would share the file A_b.log: rename one of them",
    ),
    "name of 300 bytes": (
        [(METRICS, f'[loss, {{kind: "names:Named", name: {"é" * 150}}}]')],
        "which has 300 bytes: use a name of at most 200",
    ),
}


@pytest.mark.parametrize(("edits", "message"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_between_params_are_mistakes(edits, message, project, try_parts):
    (project.folder / "names.py").write_text(BAD_NAMES)
    for old, new in edits:
        project.edit("params.yaml", old, new)

    late = find_late_mistakes(read_params(), read_yaml(PARAMS), read_definition())
    mistakes = late or try_parts()

    assert len(mistakes) == 1, mistakes
    assert message in mistakes[0]
    assert late or not are_metrics_known(read_params())


def test_best_epoch_of_another_metric_is_accepted(project):
    project.edit("params.yaml", "  num_epochs: 20", f"  num_epochs: 20\n  {KEEP}")
    project.edit(
        "params.yaml", "  epoch: last", "  epoch: best\n  best: {metric: Accuracy, direction: highest}"
    )

    assert project.call("check").code == 0


def test_steps_of_a_schedule_that_knows_the_run_are_printed(finished):
    stated = "kind: cosine\n    warmup: 10 %\n    num_iters: 1 epoch"
    finished.edit("params.yaml", "kind: constant", stated)
    finished.edit("params.yaml", "batches: 1\n", "batches: 5\n")
    finished.edit("params.yaml", "kind: cosine", "kind: cosine\n    per: update")

    assert finished.call("check").ok() == (
        "build_learner.schedule.warmup: 10 % is 1 step, one per update\n"
        "build_learner.schedule.num_iters: 1 epochs is 3 steps, one per update\n"
        "params.yaml is valid\n"
    )

    finished.edit("params.yaml", "warmup: 10 %", "warmup: 3 epochs")
    refused = finished.call("check")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "3 epochs is 9 steps, one per update, and 6 are available" in refused.err


def test_steps_are_those_of_the_version_of_burn_that_the_run_follows(finished):
    finished.edit("params.yaml", "kind: constant", "kind: cosine")
    finished.edit("params.yaml", "batches: 1\n", 'batches: 5\n  burn: "0.22"\n')

    assert (
        finished.call("check")
        .ok()
        .startswith("build_learner.schedule.num_iters: 100 % is 6 steps, one per update\n")
    )
