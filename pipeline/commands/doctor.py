"""The command ``learner doctor``: is all well here, and if not, what is to be done?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.collision import find_collision_in_project
from stages.contracts.errors import StageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.doctor.diagnostics import Check, Diagnostic

PATIENCE_SECONDS = 35.0
DEEP_SECONDS = 24 * 3600.0
GIT_ROUNDS = 3


def doctor(
    *,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Clear what killed processes left: locks, experiments, changes of the checkout."
        ),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read every file in DVC's cache and check its hash.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Look at packages, devices, disk, remotes, Prefect, dvc.yaml, git and leftovers; exit 1 on a problem."""
    from pipeline.doctor.diagnostics import Level, drop_duplicates, run_checks

    checks = _checks()
    by_check = run_checks(checks, PATIENCE_SECONDS)
    if deep:
        checks |= {"cache": _deep_check()}
        by_check |= run_checks({"cache": checks["cache"]}, DEEP_SECONDS)
    if fix:
        for what in _fix(by_check, checks):
            typer.echo(f"mended: {what}", err=as_json)
    found = drop_duplicates(by_check)
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in found], indent=2))
    else:
        for each in found:
            _print(each, max(len(one.subject) for one in found))
    if any(each.level is Level.PROBLEM for each in found):
        raise typer.Exit(1)


def _checks() -> "dict[str, Check]":
    if list(_check_names()):  # the findings of the other checks would only follow from this one
        return {"names": _check_names}
    try:
        from pipeline.doctor import checkout, dependencies, environment, stale_files, storage
    except ImportError as error:
        raise StageError(f"{error}: install learner-pipeline anew, with what it needs") from error
    return {
        "packages": environment.check_packages,
        "params": dependencies.check_project,
        "devices": environment.check_devices,
        "disk": environment.check_disk,
        "prefect": environment.check_prefect,
        "remotes": storage.check_remotes,
        "untracked": dependencies.check_untracked_files,
        "git": checkout.check_checkout,
        "locks": stale_files.check_locks,
        "experiments": stale_files.check_experiments,
        "runs": stale_files.check_run_stores,
    }


def _check_names() -> "Iterator[Diagnostic]":
    """Yield a problem if packages in this folder have the name of one of ours."""
    from pipeline.doctor.diagnostics import problem

    collision = find_collision_in_project(Path())
    if collision:
        yield problem("names", collision.problem, collision.remedy)


def _deep_check() -> "Check":
    from pipeline.doctor.storage import check_cache

    return check_cache


def _fix(by_check: "dict[str, list[Diagnostic]]", checks: "dict[str, Check]") -> list[str]:
    """Do what repairs the findings in *by_check*, and look again; return what each of them was.

    Git comes first, until nothing is left: a lock file hides what else is wrong, and DVC's locks, which are
    cleared later, show which experiment was killed.
    """
    from pipeline.doctor.diagnostics import run_checks

    fixed = []
    for name in [*["git"] * GIT_ROUNDS, *(each for each in by_check if each != "git")]:
        if mended := _mended(by_check[name]):
            fixed += mended
            seconds = DEEP_SECONDS if name == "cache" else PATIENCE_SECONDS
            by_check |= run_checks({name: checks[name]}, seconds)
    return fixed


def _mended(findings: "list[Diagnostic]") -> list[str]:
    """Do what mends *findings*; what each of those was."""
    mended = []
    for each in findings:
        if each.fix:
            each.fix()
            mended.append(each.message)
    return mended


def _plain(finding: "Diagnostic") -> dict[str, object]:
    return {
        "about": finding.subject,
        "level": finding.level.value,
        "what": finding.message,
        "cure": finding.remedy,
        "fixable": finding.fix is not None,
    }


def _print(finding: "Diagnostic", width: int) -> None:
    typer.echo(f"{finding.level:<7}  {finding.subject:<{width}}  {finding.message}")
    for line in finding.remedy.splitlines():
        typer.echo(f"{'':<7}  {'':<{width}}  {'→ ' if line == finding.remedy.splitlines()[0] else ''}{line}")
