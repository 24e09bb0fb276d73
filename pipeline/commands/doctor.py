"""The command ``learner doctor``."""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pipeline.commands.envelope import ProblemsFound
from pipeline.commands.options import flag, option
from pipeline.commands.results import Diagnosis
from stages.contracts.errors import StageError
from stages.contracts.printing import print_line

if TYPE_CHECKING:
    from pipeline.doctor.diagnostics import Check, Diagnostic

TIMEOUT_SECONDS = 30.0
DEEP_TIMEOUT_SECONDS = 24 * 3600.0
DEEP_CHECKS = ("cache", "outputs")
"""Names of the checks that read all files."""
RESERVE_SECONDS = 5.0
"""Time that a check may take after its server or program has timed out."""
MAX_GIT_FIXES = 3
"""Number of repetitions of the git check, because a lock file hides further problems."""


def doctor(
    *,
    fix: Annotated[
        bool,
        flag(
            "--fix", "Remove what killed processes left (locks, experiments), and restore the git checkout."
        ),
    ] = False,
    deep: Annotated[
        bool,
        flag(
            "--deep",
            "Read every file in DVC's cache and every output, and compare its hash; with --fix, remove "
            "damaged files.",
        ),
    ] = False,
    timeout: Annotated[
        float, option("Seconds after which a server, a remote or a check without an answer is reported.")
    ] = TIMEOUT_SECONDS,
) -> list[Diagnosis]:
    """Check the environment and this project, and print a remedy for each problem.

    The checks cover private names of other packages that this project replaces, disk space, remotes,
    Prefect, dvc.yaml, git, and files that killed processes left; `pip check` covers packages. Exit with code
    1 if there is a problem.

    Example: learner doctor --fix
    """
    from pipeline.doctor.diagnostics import Level, drop_duplicates, run_checks

    checks = _list_checks(timeout)
    by_check = run_checks(checks, timeout + RESERVE_SECONDS)
    if deep:
        from pipeline.doctor import project, stale_files

        deep_checks: dict[str, Check] = {"cache": stale_files.check_cache, "outputs": project.check_outputs}
        checks |= deep_checks
        by_check |= run_checks(deep_checks, DEEP_TIMEOUT_SECONDS)
    if fix:
        for message in _fix_all(by_check, checks, timeout):
            print_line(f"fixed: {message}")
    diagnostics = drop_duplicates(by_check)
    width = max(len(diagnostic.subject) for diagnostic in diagnostics)
    for diagnostic in diagnostics:
        _print(diagnostic, width)
    results = [
        Diagnosis(one.subject, one.level.value, one.message, one.remedy, fixable=one.fix is not None)
        for one in diagnostics
    ]
    if any(diagnostic.level is Level.PROBLEM for diagnostic in diagnostics):
        raise ProblemsFound(results)
    return results


def _list_checks(timeout: float) -> "dict[str, Check]":
    """Return the checks by name."""
    try:
        from pipeline.doctor import checkout, environment, project, stale_files
        from pipeline.project.revisions.dvc_checks import apply_checks
    except ImportError as error:
        raise StageError(f"{error}. Reinstall learner-pipeline with its requirements") from error
    with suppress(StageError):  # another DVC, which the check of the patches reports
        apply_checks()
    return {
        "patches": partial(environment.check_patches, timeout),
        "params": project.check_project,
        "disk": environment.check_disk,
        "prefect": partial(environment.check_prefect, timeout),
        "remotes": partial(environment.check_remotes, timeout),
        "untracked": project.check_untracked_files,
        "git": checkout.check_checkout,
        "locks": stale_files.check_locks,
        "state": environment.check_state_folder,
        "journal": stale_files.check_params_journal,
        "experiments": stale_files.check_experiments,
        "runs": stale_files.check_run_stores,
    }


def _fix_all(
    by_check: "dict[str, list[Diagnostic]]", checks: "dict[str, Check]", timeout: float
) -> list[str]:
    """Apply the fixes in *by_check*, repeat their checks, and return the messages of what was fixed.

    Git comes first: DVC's locks, which are removed later, show which experiment was killed.
    """
    from pipeline.doctor.diagnostics import run_checks

    messages = []
    for name in [*["git"] * MAX_GIT_FIXES, *(check for check in by_check if check != "git")]:
        fixes = [(diagnostic.message, diagnostic.fix) for diagnostic in by_check[name] if diagnostic.fix]
        for message, fix in fixes:
            fix()
            messages.append(message)
        if fixes:
            seconds = DEEP_TIMEOUT_SECONDS if name in DEEP_CHECKS else timeout + RESERVE_SECONDS
            by_check |= run_checks({name: checks[name]}, seconds)
    return messages


def _print(diagnostic: "Diagnostic", width: int) -> None:
    print_line(f"{diagnostic.level:<7}  {diagnostic.subject:<{width}}  {diagnostic.message}")
    for number, line in enumerate(diagnostic.remedy.splitlines()):
        print_line(f"{'':<7}  {'':<{width}}  {'' if number else '→ '}{line}")
