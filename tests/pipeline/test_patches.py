"""The private names of DVC and Prefect that the pipeline replaces."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ["pipeline.engine.dvc_patches", "pipeline.flows.prefect_patches"]
STATE = """
import {module} as patches
from stages.contracts.patches import find_problems
def problems():
    return find_problems(patches.PATCHES)
def replaced():
    return [patch.name for patch in patches.PATCHES if hasattr(patch.find(), "__wrapped__")]
before = replaced()
"""


def run_program(program, module):
    """Run *program* in a process of its own, because a patch stays for the life of a process."""
    return subprocess.run(
        [sys.executable, "-c", STATE.format(module=module) + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", MODULES)
def test_installed_package_has_every_replaced_name_before_and_after_the_replacement(module):
    done = run_program("print(problems()); patches.apply(); print(problems())", module)

    assert done.stdout == "[]\n[]\n", done.stderr


@pytest.mark.parametrize("module", MODULES)
def test_import_replaces_nothing_and_apply_replaces_once(module):
    program = "patches.apply(); first = replaced(); patches.apply(); print(replaced() == first)"
    done = run_program(f"{program}; print(set(before) & {{'dvc.stage.run:cmd_run'}}, len(first))", module)

    same, untouched, count = done.stdout.replace(" ", "\n").split()
    assert (same, untouched) == ("True", "set()")
    assert int(count) >= 3


@pytest.mark.parametrize(
    ("module", "removal", "words"),
    [
        (
            MODULES[0],
            "import dvc.stage.run; del dvc.stage.run.cmd_run",
            ["dvc 3.", "dvc.stage.run.cmd_run does not exist", "Install dvc 3.67.1"],
        ),
        (
            MODULES[1],
            "import prefect.flow_engine as engine; engine.maintain_concurrency_lease = lambda lease: None",
            ["prefect 3.", "has the signature (lease), not (lease_id,", "Install prefect >=3.8.8,<3.10"],
        ),
    ],
)
def test_changed_name_is_an_error_that_names_the_supported_versions(module, removal, words):
    done = run_program(f"{removal}\npatches.apply()", module)

    message = done.stderr.splitlines()[-1]
    assert "StageError" in message
    assert [word for word in words if word not in message] == []
