"""The packages that are mutated, the tests of each, and how many mutants are drawn."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Package:
    """A part of the project and its tests."""

    sources: tuple
    """Folders or modules."""
    tests: tuple
    """Paths of tests, those of the part first."""
    count: int
    """Mutants to draw."""
    test_seconds: float = 30
    """Processor time of the unmutated tests that one mutant runs: the fastest that cover it, up to this."""

    def files(self, root):
        """Return the modules to mutate, relative to *root*; an ``__init__`` only lists names."""
        found = []
        for source in self.sources:
            path = Path(root, source)
            found += [path] if path.suffix else sorted(path.rglob("*.py"))
        return [str(path.relative_to(root)) for path in found if path.name != "__init__.py"]


JOINT = (
    "engine/reproduce",
    "engine/stage_run",
    "engine/lock",
    "engine/signals",
    "engine/watchdog",
    "flows/flow",
    "flows/task_run",
    "project/lockfile",
    "project/snapshot",
)

PACKAGES = {
    "optim": Package(("stages/optim",), ("tests/optim", "tests/learner"), 60),
    "metrics": Package(("stages/metrics",), ("tests/metrics", "tests/learner"), 60),
    "runs": Package(("stages/runs",), ("tests/runs", "tests/learner"), 60),
    "data": Package(("stages/data",), ("tests/data",), 60),
    "inference": Package(("stages/inference",), ("tests/inference",), 60),
    "learner": Package(
        ("stages/learner", "stages/devices"),
        (
            "tests/learner",
            "tests/distributed",
            "tests/devices",
            "tests/data/test_device_loader.py",
            "tests/test_build_learner.py",
        ),
        60,
    ),
    "joint": Package(
        tuple(f"pipeline/{name}.py" for name in JOINT),
        (
            "tests/pipeline/project/test_snapshot.py",
            "tests/pipeline/project/test_lockfile.py",
            "tests/pipeline/engine/test_project_lock.py",
            "tests/pipeline/engine/test_deferred_signals.py",
            "tests/pipeline/engine/test_reproduce.py",
            "tests/pipeline/engine/test_reasons.py",
            "tests/pipeline/engine/test_cache_links.py",
            "tests/pipeline/engine/test_stage_run.py",
            "tests/pipeline/engine/test_damaged_state.py",
            "tests/pipeline/engine/test_killed_experiment.py",
            "tests/pipeline/flows/test_flow.py",
            "tests/pipeline/flows/test_flow_runs.py",
            "tests/pipeline/flows/test_recorded_runs.py",
        ),
        60,
        120,
    ),
}
