"""`learner sweep --search`: the trials depend on the results only, also after a kill."""

import math
import shlex
import sys

import pytest
from long_tests import long

from pipeline.comparison.runs import MetricCurve
from pipeline.sweep.search import SAMPLERS, Search, SearchOptions
from pipeline.sweep.stopping import RULES
from stages.contracts.errors import ParamsError
from stages.contracts.history import Direction

RATE = "build_learner.optimizer.learning_rate"
SPACE = (f"{RATE}=tag(log,interval(1e-4,1e-1))", "fit.batch_size=tag(log,int(interval(16,128)))")


def curve(*values):
    return MetricCurve("valid", "Loss", dict(enumerate(values, 1)), Direction.LOWEST)


def losses(point):
    """Return a curve with its minimum at a learning rate of 0.003, and with no value for one above 0.03."""
    rate = float(dict(point.varying)[RATE])
    return None if rate > 0.03 else curve(2.0, (math.log10(rate) + 2.5) ** 2)


def search_points(sampler, seed, trials=20):
    """Return the points of a search whose results are `losses`."""
    search, found = Search(SPACE, SearchOptions(sampler, trials, seed=seed)), []
    while points := search.ask():
        found += points
        search.tell([(losses(point), None) for point in points])
    return found


@pytest.mark.parametrize("sampler", [long(each) if each == "gp" else each for each in SAMPLERS])
def test_trials_depend_on_the_seed_only(sampler):
    first = search_points(sampler, 1)

    assert search_points(sampler, 1) == first
    assert search_points(sampler, 2) != first
    assert len(first) == 20


def test_sampler_draws_more_trials_near_the_best_ones():
    """Of the trials of tpe after the first 20, more are near the optimum than of random ones."""
    near = {
        sampler: sum(
            each is not None and each.best < 0.1
            for each in map(losses, search_points(sampler, 0, trials=40)[20:])
        )
        for sampler in ("tpe", "random")
    }

    assert near["tpe"] > near["random"]


def test_equal_trials_of_a_batch_are_one_point():
    search = Search(["fit.seed=1,2"], SearchOptions("random", 10, batch=10))

    points = search.ask()
    search.tell([(curve(1.0), None), (None, None)])

    assert len(points) == 2
    assert search.drawn == 10
    assert search.ask() == []


def test_percentile_pruner_stops_points_that_are_worse_than_finished_trials():
    search = Search(SPACE, SearchOptions("random", 10))
    rule = RULES["percentile"]
    search.use_pruner(rule, [1, 2])

    first = search.ask()
    assert search.select({number: curve(number) for number in range(len(first))}, 1) == [0, 1, 2, 3, 4]
    search.tell([(curve(number, number), None) for number in range(len(first))])
    search.ask()

    assert search.select({0: curve(0.5), 1: curve(3.0), 2: None, 3: curve(math.nan)}, 1) == [0]


def test_hyperband_pruner_stops_points_that_are_worse_than_earlier_ones():
    search = Search(SPACE, SearchOptions("random", 20, batch=20))
    search.use_pruner(RULES["hyperband"], [1, 3, 9])
    search.ask()

    chosen = search.select({number: curve(float(number)) for number in range(20)}, 1)

    assert 0 in chosen
    assert 1 <= len(chosen) < 20


def test_missing_package_is_reported_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(
        ParamsError, match="--search tpe needs optuna.*pip install 'learner-pipeline\\[optuna\\]'"
    ):
        Search(SPACE, SearchOptions("tpe", 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "-S fit.batch_size=interval(8,64)",
            "a grid has no intervals. Add for example --search tpe --trials 30",
        ),
        ("-S fit.seed=1,2 --trials 3", "--trials 3 needs a sampler"),
        ("-S fit.seed=1,2 --batch 3", "--batch 3 needs a sampler"),
        (
            "-S fit.seed=1,2 --search tpe",
            "--search tpe needs the number of points. Add for example --trials 30",
        ),
        ("-S fit.seed=1,2 --search tpe --trials 3 --random 2", "--random 2 draws from a grid"),
        ("-S fit.seed=1,2 --stop hyperband", "--stop hyperband compares a point with earlier trials"),
        (
            "-S fit.seed=1,2 --search tpe --trials 3 --seed -1",
            "--seed of --search must be from 0 to 4294967295",
        ),
        (
            "-S fit.num_epochs=2,3 --search tpe --trials 3 --stop asha",
            "-S fit.num_epochs must have one value",
        ),
        (
            "-S 'fit.batch_size=interval(8.2,8.4)' --search tpe --trials 3",
            "fit.batch_size: must be an integer",
        ),
    ],
)
def test_wrong_combination_is_one_message(arguments, message, project):
    refused = project.call("sweep", "--dry-run", *shlex.split(arguments))

    assert (refused.code, refused.out) == (2, "")
    assert message in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.long
def test_search_with_early_stopping_that_is_killed_is_resumed(project, sweep_in):
    """Of three trials, one continues after the first epoch; the next run of the command repeats none."""
    project.use_model("mlp")
    project.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
    project.ok("git", "commit", "-qam", "Three epochs")
    space = ("-S", f"{RATE}=tag(log,interval(1e-4,1e-1))")
    sweep = sweep_in(project, "--search", "random", "--trials", "3", "--seed", "3", "--stop", "asha", *space)

    with sweep.start() as process:
        sweep.wait_for(process, experiments=1, training=0)
        process.kill()
    resumed, repeated = sweep.run(), sweep.run()

    assert (resumed.code, repeated.code) == (0, 0), resumed.text
    epochs = {name: sweep.epochs(name) for name in sweep.experiments()}
    assert sorted(epochs.values()) == [[1], [1], [1, 2, 3]]
    assert repeated.out.count(": done before") == len(epochs) + 1


@pytest.mark.long
def test_search_that_is_killed_ends_with_the_same_trials(project, other_project, sweep_in):
    """With early stopping by a pruner of Optuna, another number of jobs, and a trial that fails."""
    command = ("--search", "tpe", "--trials", "8", "--batch", "4", "--stop", "hyperband", "--seed", "3")
    space = ("-S", f"{RATE}=tag(log,interval(1e-4,1e-1))", "-S", "fit.batch_size=range(0,128,32)")
    for each in (project, other_project):
        each.use_model("mlp")
        each.edit("params.yaml", "num_epochs: 2", "num_epochs: 3")
        each.ok("git", "commit", "-qam", "Three epochs")
    killed = sweep_in(project, *command, *space, "-j", "2")

    whole = sweep_in(other_project, *command, *space).run()
    with killed.start() as process:
        killed.wait_for(process, experiments=5, training=0)
        process.kill()
    resumed = killed.run()

    assert "trials 1 to 4 of 8:" in whole.out, whole.text
    assert "trials 5 to 8 of 8:" in resumed.out, resumed.text
    assert whole.code == resumed.code == 1  # a batch size of 0 is not valid
    assert read_trials(project) == read_trials(other_project)
    assert 5 < len(read_trials(project)) < 8


def read_trials(project):
    """Return the hash of the params and of the outputs of each experiment, by its name."""
    refs = project.ok("git", "for-each-ref", "--format=%(refname)", "refs/exps").split()
    return {
        ref.rpartition("/")[2]: project.ok("git", "rev-parse", f"{ref}:params.yaml", f"{ref}:dvc.lock")
        for ref in refs
    }
