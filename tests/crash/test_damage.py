"""A run store is damaged, or deleted during the run, and no damaged result is published."""

import shutil

import pytest
from file_damage import delete_tree
from long_tests import cases, long
from small_run import CONFIG, Counter, SmallRun, prepare, run_in_child

from stages.contracts.events import Interrupter
from stages.fit import fit
from stages.params.fit_params import FitContext
from stages.runs.layout import stores

FOUR_EPOCHS = CONFIG.model_copy(update={"num_epochs": 4})


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return a finished run of four epochs that keeps the last two and the best checkpoints."""
    folder = tmp_path_factory.mktemp("damage")
    prepare(folder)
    run = SmallRun(folder / "reference")
    run.begin()
    code, _, message = run_in_child(lambda: run.fit(FOUR_EPOCHS))
    assert code == 0, message
    return run


@pytest.fixture
def run(reference, tmp_path_factory):
    """Return a copy of the finished run without published outputs."""
    copy = SmallRun(reference.folder.parent / tmp_path_factory.mktemp("copy").name)
    shutil.copytree(reference.paths.runs, copy.paths.runs)
    copy.paths.artifacts.mkdir()
    return copy


STORE_FILES = (
    "metrics.json",
    "plots/Loss.tsv",
    "plots/confusion.tsv",
    "plots/iterations/valid/Loss.tsv",
    "train/epoch-1/Loss.log",
    "valid/epoch-4/Accuracy.log",
    "checkpoint/model-3.mpk.gz",
    "checkpoint/optim-4.mpk.gz",
    "checkpoint/scheduler-4.mpk.gz",
    "checkpoint/trainer-4.mpk.gz",
    "learner.json",
    "key.json",
    "finished.json",
    "logs.jsonl",
    "experiment.log",
    "heartbeat.json",
    "environment.json",
)


def flip_bit(path, place):
    """Change the lowest bit of the byte at the relative position *place*, from 0 to 1."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


SHORT_FILES = (
    *("metrics.json", "train/epoch-1/Loss.log", "checkpoint/model-3.mpk.gz", "key.json"),
    "finished.json",
)
BIT_FLIPS = [
    *((name, 0.5) if name in SHORT_FILES else long(name, 0.5) for name in STORE_FILES),
    long("finished.json", 0),
    ("finished.json", 0.03),
    long("key.json", 0),
]


@pytest.mark.parametrize(("name", "place"), BIT_FLIPS)
def test_damaged_file_of_finished_run_is_never_published(name, place, run, reference):
    flip_bit(run.store() / name, place)

    code, _, message = run_in_child(lambda: run.fit(FOUR_EPOCHS))

    assert code == 0 or (code == 1 and name in message), message
    assert run.outputs() == (reference.outputs() if code == 0 else {})


@pytest.mark.parametrize(
    "name", ["metrics.json", long("train/epoch-1/Loss.log"), "checkpoint/model-3.mpk.gz"]
)
def test_missing_file_of_finished_run_is_recreated(name, run, reference):
    (run.store() / name).unlink()

    code, _, message = run_in_child(lambda: run.fit(FOUR_EPOCHS))

    assert code == 0, message
    assert run.outputs() == reference.outputs()


class ActionAtStep(Counter):
    """A renderer that calls a function once, after a number of steps."""

    def __init__(self, number, action):
        super().__init__()
        self._number, self._action = number, action

    def step(self, progress):
        super().step(progress)
        if self.steps == self._number:
            self._number = None
            self._action()


@pytest.fixture
def new_run(reference, tmp_path_factory):
    """Return a run with the same inputs that has not started."""
    run = SmallRun(reference.folder.parent / tmp_path_factory.mktemp("copied").name)
    run.begin()
    return run


@pytest.fixture
def interrupted(reference, tmp_path_factory):
    """Return a run that was interrupted in its third epoch."""
    interrupted_run = SmallRun(reference.folder.parent / tmp_path_factory.mktemp("stopped").name)
    interrupted_run.begin()
    interrupter = Interrupter()
    renderer = ActionAtStep(15, lambda: interrupter.stop("the test"))
    context = FitContext(renderer=renderer, interrupter=interrupter)
    code, _, message = run_in_child(lambda: fit(FOUR_EPOCHS, interrupted_run.paths, context))
    assert code == 1, message
    return interrupted_run


DAMAGES = {"changed": lambda path: flip_bit(path, 0.5), "missing": lambda path: path.unlink()}
DAMAGED_FILES = (
    "train/epoch-1/Loss.log",
    "train/epoch-3/Loss.log",
    "checkpoint/model-2.mpk.gz",
    "learner.json",
    "logs.jsonl",
)
DAMAGED = {f"{damage}-{name}": (damage, name) for damage in DAMAGES for name in DAMAGED_FILES}


@pytest.mark.parametrize(
    ("damage", "name"),
    cases(DAMAGED, ["changed-train/epoch-1/Loss.log", "missing-checkpoint/model-2.mpk.gz"]),
)
def test_damaged_file_of_interrupted_run_is_recreated(damage, name, interrupted, reference):
    DAMAGES[damage](interrupted.store() / name)

    code, _, message = run_in_child(lambda: interrupted.fit(FOUR_EPOCHS))

    assert code == 0, message
    assert interrupted.outputs() == reference.outputs()


def test_run_that_was_finished_on_other_devices_is_published_with_a_line(reference, tmp_path_factory, capfd):
    copy = SmallRun(reference.folder.parent / tmp_path_factory.mktemp("devices").name)
    copy.begin()
    assert run_in_child(lambda: copy.fit(CONFIG.model_copy(update={"device": "cpu"})))[0] == 0

    code, _, message = run_in_child(lambda: copy.fit(CONFIG.model_copy(update={"device": ("cpu", "cpu")})))

    assert code == 0, message
    assert "it was trained on cpu: a training on cpu, cpu would differ" in capfd.readouterr().out
    assert len(stores(copy.paths.runs)) == 1


@pytest.mark.parametrize(
    ("target", "step", "is_replaced"),
    [("store", 3, False), long("store", 21, True), ("runs", 3, True)],
)
def test_deletion_of_store_during_run_stops_run(target, step, is_replaced, new_run):
    def delete():
        store = new_run.store()
        delete_tree({"store": store, "runs": new_run.paths.runs}[target])
        if is_replaced:
            store.mkdir(parents=True)

    code, _, message = run_in_child(
        lambda: fit(FOUR_EPOCHS, new_run.paths, FitContext(renderer=ActionAtStep(step, delete)))
    )

    assert code == 1
    assert "was removed or replaced while the run worked in it" in message
    assert new_run.outputs() == {}


@pytest.mark.parametrize(
    "name",
    [
        long("train/epoch-1"),
        long("train/epoch-3"),
        long("valid/epoch-1/Loss.log"),
        long("train/epoch-3/Loss.log"),
        "checkpoint",
        "logs.jsonl train/epoch-1 valid/epoch-1",
        long("plots"),
    ],
)
def test_files_deleted_during_run_are_recreated(name, new_run, reference):
    def delete():
        for path in map(new_run.store().joinpath, name.split()):
            if path.is_dir():
                delete_tree(path)
            path.unlink(missing_ok=True)

    context = FitContext(renderer=ActionAtStep(15, delete))
    code, _, message = run_in_child(lambda: fit(FOUR_EPOCHS, new_run.paths, context))
    assert code == 0 or (code == 1 and "removed" in message), message
    assert new_run.outputs() == (reference.outputs() if code == 0 else {})

    code, _, message = run_in_child(lambda: new_run.fit(FOUR_EPOCHS))
    assert code == 0, message
    assert new_run.outputs() == reference.outputs()
