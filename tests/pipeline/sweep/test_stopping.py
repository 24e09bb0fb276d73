"""Early stopping: after each rung of epochs the better points continue; a resume makes the same choices."""

import io
import re

import pytest
from waiting import wait_until

from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary
from pipeline.sweep.executors import ThreadExecutor
from pipeline.sweep.plan import expand
from pipeline.sweep.progress import WIDTH, result_table
from pipeline.sweep.stopping import RULES, default_metric, find_metric, rank
from pipeline.sweep.sweep import SweepOptions, sweep
from stages.contracts.errors import ParamsError, StageFailedError
from stages.contracts.history import Direction
from stages.runs import open_store, prune_after_run, runs
from stages.system.file_lock import hold_lock

RATE = "build_learner.optimizer.learning_rate"
RATES = "0.0001,0.001,0.003,0.01,0.1,1e30"


def summary(name, *accuracies, **more):
    curve = MetricCurve("valid", "Accuracy", dict(enumerate(accuracies, 1)), Direction.HIGHEST)
    return RunSummary(name, None, metrics={curve.name: curve}, epochs=len(accuracies), **more)


@pytest.mark.parametrize(
    ("rule", "epochs", "validate_every", "rungs"),
    [
        ("asha", 9, 1, [1, 3, 9]),
        ("asha", 20, 1, [2, 6, 20]),
        ("median", 20, 1, [1, 2, 5, 10, 20]),
        ("median", 1, 1, [1]),
        ("median", 20, 4, [4, 8, 12, 20]),
        ("asha", 5, 3, [3, 5]),
        ("asha", 4, 4, [4]),
    ],
)
def test_rungs_divide_the_epochs_by_the_factor_and_are_validated(rule, epochs, validate_every, rungs):
    assert RULES[rule].rungs(epochs, validate_every) == rungs


def test_best_third_continues_and_of_equal_points_the_first_ones():
    accuracies = dict(enumerate([70.0, 90.0, None, 90.0, 90.0, 80.0]))
    curves = {
        number: accuracy and summary("a", accuracy).metrics["valid/Accuracy"]
        for number, accuracy in accuracies.items()
    }

    assert RULES["asha"].select(curves, 1) == [1, 3]
    assert RULES["median"].select(curves, 1) == [1, 3, 4]
    assert RULES["asha"].select({0: None}, 1) == []


def test_rank_has_no_value_of_a_later_epoch():
    curve = summary("a", 50.0, float("nan"), 70.0, 90.0).metrics["valid/Accuracy"]

    assert [rank(curve, epochs) for epochs in (1, 2, 3, 4)] == [-50.0, -50.0, -70.0, -90.0]
    assert rank(MetricCurve("valid", "Loss", {1: float("inf")}, Direction.LOWEST), 1) is None


def test_failed_point_counts_and_does_not_continue():
    curves = [summary("a", accuracy).metrics["valid/Accuracy"] for accuracy in (50.0, 60.0)]

    assert RULES["asha"].select(dict(enumerate([*curves, None, None, None, None])), 1) == [0, 1]


def test_metric_without_a_known_direction_cannot_rank():
    curve = MetricCurve("valid", "Width", {1: 1.0}, None)
    compared = Comparison((RunSummary("a", None, metrics={curve.name: curve}),))

    assert default_metric(compared) is None
    with pytest.raises(ParamsError, match="no direction is known of Width"):
        find_metric(compared, "Width")


def test_default_metric_is_of_the_valid_split_if_there_is_one():
    trained = MetricCurve("train", "Loss", {1: 1.0}, Direction.LOWEST)
    width = MetricCurve("valid", "Width", {1: 1.0}, None)
    without_valid = RunSummary("a", None, metrics={trained.name: trained})
    with_valid = RunSummary("b", None, metrics={each.name: each for each in (trained, width)})

    assert default_metric(Comparison((without_valid,))) == "train/Loss"
    assert default_metric(Comparison((without_valid, with_valid))) is None


def test_table_is_sorted_by_the_metric_and_at_most_80_columns_wide():
    long = "learning_rate=0.001,batch_size=32,dropout=0.25,width=512,depth=12,kind=mlp"
    compared = Comparison((summary("a", 50.0, seconds=3.0), summary(long, 60.0, 55.0), RunSummary("b", None)))

    lines = result_table(compared, "valid/Accuracy").splitlines()

    assert [line.split()[0] for line in lines] == ["run", long, "60.000", "a", "b"]
    assert max(map(len, lines)) <= WIDTH
    assert lines[3].split() == ["a", "50.000", "1", "1", "3.0", "s"]


def test_table_with_a_long_metric_is_at_most_80_columns_wide():
    curve = MetricCurve("valid", "Loss " * 30, {1: 0.25}, Direction.LOWEST)
    compared = Comparison((RunSummary("seed=1", None, metrics={curve.name: curve}, epochs=1),))

    lines = result_table(compared, curve.name).splitlines()

    assert lines[0].startswith("run     valid/Loss Loss ")
    assert lines[1].split() == ["seed=1", "0.250", "1", "1", "-"]
    assert len(lines[0]) == len(lines[1]) <= WIDTH


def test_finished_stores_stay_until_the_better_points_have_resumed(project, monkeypatch):
    """A rung may finish more points than the stores that stay otherwise; each store is one of three later."""
    monkeypatch.chdir(project.folder)
    root = project.folder / ".runs"
    counts = []

    def finish(jobs, _, report):
        for job in jobs:
            with open_store(root, {"point": job.point.name}) as store:
                store.finish({"epoch": 1})
            prune_after_run(root, store.key)
            report(job, StageFailedError("it has no experiment"))
        counts.append(len(runs(root)))

    options = SweepOptions(
        ThreadExecutor(1),
        finish,
        share_gpus=False,
        stop="asha",
        metric=None,
        has_repeats=False,
        output=io.StringIO(),
    )

    def run():
        with pytest.raises(StageFailedError, match="5 of 5 points failed"):
            sweep(expand([f"{RATE}=0.1,0.2,0.3,0.4,0.5"]), options)
        return len(runs(root))

    (root / "sweep").mkdir(parents=True)
    with hold_lock(root / "sweep/other.rungs"):
        assert run() == 5
    assert run() == 3
    assert counts == [5, 5]


@pytest.mark.long
def test_stopped_sweep_that_is_killed_ends_with_the_same_trials(project, other_project, sweep_in):
    command = ("-j", "2", "--stop", "asha", "-S", f"{RATE}={RATES}")
    for each in (project, other_project):
        each.use_model("mlp")
        each.edit("params.yaml", "num_epochs: 2", "num_epochs: 9")
        each.ok("git", "commit", "-qam", "Nine epochs")
    killed = sweep_in(project, *command)

    whole = sweep_in(other_project, *command).run()
    for experiments in (2, 5):
        with killed.start() as process:
            killed.wait_for(process, experiments=experiments, training=0)
            process.kill()
        wait_until(lambda: not killed.processes())  # they end soon after the sweep
    resumed = killed.run()

    assert whole.code == resumed.code == 1  # one point fails
    assert read_trials(project) == read_trials(other_project)
    assert sorted(read_trials(project).values()) == [1, 1, 1, 3, 9]
    assert re.search(r"\[[1-5]/6\] learning_rate=[\d.]+: done, about .* left\n", whole.out), whole.out
    [best] = [name for (name, _), epochs in read_trials(project).items() if epochs == 9]
    assert killed.epochs(best) == list(range(1, 10)), killed.logs()[best]
    dry = project.call("sweep", "--dry-run", *command[2:])
    assert dry.out.count(": done") == 5
    assert not [*(project.folder / ".runs/sweep/servers").iterdir()]


def read_trials(project):
    """Return the number of epochs of each experiment, by its name and the hash of its outputs."""
    found = {}
    for ref in project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps").split():
        params = project.ok("git", "show", f"{ref}:params.yaml")
        epochs = int(params.partition("num_epochs: ")[2].split()[0])
        found[ref.rpartition("/")[2], project.ok("git", "rev-parse", f"{ref}:dvc.lock")] = epochs
    return found


@pytest.mark.parametrize("key", ["fit.num_epochs", "+fit.validate_every"])
def test_epochs_cannot_vary_if_points_are_stopped(project, key):
    refused = project.call("sweep", "--stop", "median", "-S", f"{key}=2,4")

    assert refused.code == 2
    assert (
        f"--stop chooses the epochs of each point, so -S {key.lstrip('+')} must have one value" in refused.err
    )


def test_points_without_a_validated_epoch_cannot_be_stopped(project):
    command = ("sweep", "--stop", "median", "-S", "fit.seed=1,2", "-S", "+fit.validate_every=3")

    refused = project.call(*command)

    assert refused.code == 2
    assert "fit.validate_every is 3 and fit.num_epochs is 2, so no epoch is validated. Set" in refused.err
    assert not refused.out
