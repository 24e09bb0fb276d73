"""Kill a sweep of 8 points, one of which fails, on each engine, and run the same command again."""

import pytest
from waiting import wait_until

pytestmark = pytest.mark.long

RATES = [f"0.00{number}" for number in range(1, 8)]
EPOCHS = 4


@pytest.mark.parametrize("recorded", [False, True], ids=["without server", "with server"])
@pytest.mark.parametrize("engine", ["threads", "dask"])
def test_each_valid_point_of_a_killed_sweep_runs_once(engine, recorded, project, sweep_in, request):
    environment = {"PREFECT_API_URL": request.getfixturevalue("server")} if recorded else {}
    sweep = sweep_in(
        project, "-j", "2", "--engine", engine, "-S", f"fit.num_epochs={EPOCHS}",
        "-S", f"build_learner.optimizer.learning_rate={','.join([*RATES[:3], '1e30', *RATES[3:]])}",
        **environment,
    )  # fmt: skip
    names = [f"learning_rate={rate}" for rate in RATES]

    with sweep.start() as process:
        sweep.wait_for(process, experiments=3, training=1)
        process.kill()
        process.wait()
        before = sweep.experiments()
    outcome = sweep.run()

    assert outcome.code == 1, outcome.text
    assert "1 of 8 points failed" in outcome.err
    assert "learning_rate=1e+30" in outcome.err or "learning_rate=1e30" in outcome.err
    assert sweep.experiments() == names
    wait_until(lambda: not sweep.processes())
    for name in names:
        assert sweep.epochs(name) == list(range(1, EPOCHS + 1)), sweep.logs()[name]
        assert name not in before or sweep.attempts(name) == 1, sweep.logs()[name]
        assert f"{name}  " in outcome.out
