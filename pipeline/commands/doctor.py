"""The command ``learner doctor``: is all well here, and if not, what is to be done?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from stages.contracts.errors import StageError

if TYPE_CHECKING:
    from pipeline.doctor.findings import Check, Finding

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
    from pipeline.doctor.findings import Level, gathered, once

    checks = _checks()
    by_check = gathered(checks, PATIENCE_SECONDS)
    if deep:
        checks |= {"cache": _deep_check()}
        by_check |= gathered({"cache": checks["cache"]}, DEEP_SECONDS)
    if fix:
        for what in _fix(by_check, checks):
            typer.echo(f"mended: {what}", err=as_json)
    found = once(by_check)
    if as_json:
        typer.echo(json.dumps([_plain(each) for each in found], indent=2))
    else:
        for each in found:
            _print(each, max(len(one.about) for one in found))
    if any(each.level is Level.PROBLEM for each in found):
        raise typer.Exit(1)


def _checks() -> "dict[str, Check]":
    from pipeline.doctor.names import names

    if list(names()):  # the findings of the other checks would only follow from this one
        return {"names": names}
    try:
        from pipeline.doctor import checkout, leftovers, remotes, surroundings, untracked
    except ImportError as error:
        raise StageError(f"{error}: install learner-pipeline anew, with what it needs") from error
    return {
        "packages": surroundings.packages,
        "params": untracked.project,
        "devices": surroundings.devices,
        "disk": surroundings.disk,
        "prefect": surroundings.prefect,
        "remotes": remotes.remotes,
        "untracked": untracked.untracked,
        "git": checkout.checkout,
        "locks": leftovers.locks,
        "experiments": leftovers.ghosts,
        "runs": leftovers.runs,
    }


def _deep_check() -> "Check":
    from pipeline.doctor.cache import cache

    return cache


def _fix(by_check: "dict[str, list[Finding]]", checks: "dict[str, Check]") -> list[str]:
    """Do what repairs the findings in *by_check*, and look again; return what each of them was.

    Git comes first, until nothing is left: a lock file hides what else is wrong, and DVC's locks, which are
    cleared later, show which experiment was killed.
    """
    from pipeline.doctor.findings import gathered

    fixed = []
    for name in [*["git"] * GIT_ROUNDS, *(each for each in by_check if each != "git")]:
        if mended := _mended(by_check[name]):
            fixed += mended
            seconds = DEEP_SECONDS if name == "cache" else PATIENCE_SECONDS
            by_check |= gathered({name: checks[name]}, seconds)
    return fixed


def _mended(findings: "list[Finding]") -> list[str]:
    """Do what mends *findings*; what each of those was."""
    mended = []
    for each in findings:
        if each.mend:
            each.mend()
            mended.append(each.what)
    return mended


def _plain(finding: "Finding") -> dict[str, object]:
    return {
        "about": finding.about,
        "level": finding.level.value,
        "what": finding.what,
        "cure": finding.cure,
        "fixable": finding.mend is not None,
    }


def _print(finding: "Finding", width: int) -> None:
    typer.echo(f"{finding.level:<7}  {finding.about:<{width}}  {finding.what}")
    for line in finding.cure.splitlines():
        typer.echo(f"{'':<7}  {'':<{width}}  {'→ ' if line == finding.cure.splitlines()[0] else ''}{line}")
