"""Runs of random configurations equal a plain loop in float64: a few, and 300 with ``make long``.

Random runs of the library keep their promises: a few, and 300 with ``make long``, which also tries projects
with random params and random sequences of commands. The other tests try one option or one command at a time.
"""

import oracle
import pytest
import random_commands
import random_learners
import random_params
import random_ranks
from long_tests import long


@pytest.mark.parametrize(
    ("first", "count", "ranks"),
    [(1, 12, 1), long(13, 212, 1), long(1001, 50, 2), long(1051, 26, 3)],
)
def test_random_runs_are_those_of_a_plain_loop(first, count, ranks, tmp_path):
    assert oracle.compare(list(range(first, first + count)), str(tmp_path), ranks) == []


@pytest.mark.parametrize(("first", "count"), [(1, 12), long(13, 300)])
def test_random_runs_are_the_same_after_stops_and_with_options_that_change_no_number(first, count, tmp_path):
    seeds = range(first, first + count)
    problems = {seed: random_learners.try_learner(seed, tmp_path / f"{seed}") for seed in seeds}

    assert not {seed: found for seed, found in problems.items() if found}


@pytest.mark.parametrize(("first", "count"), [(1, 1), long(2, 60)])
def test_random_runs_on_ranks_are_the_same_after_stops_and_those_of_one_process(first, count, tmp_path):
    seeds = range(first, first + count)
    problems = {seed: random_ranks.try_ranks(seed, tmp_path / f"{seed}") for seed in seeds}

    assert not {seed: found for seed, found in problems.items() if found}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 25))
def test_projects_with_random_params_keep_their_promises(seed, project, tmp_path):
    assert random_params.try_params(seed, project, tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 9))
def test_outputs_are_those_of_a_fresh_checkout_whatever_came_before(seed, project, tmp_path):
    references = random_commands.References(project, tmp_path)

    assert random_commands.Sequence(seed, project, tmp_path, references, random_commands.LENGTH).run() == []
