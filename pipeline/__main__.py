"""The entry point of ``learner`` and of ``python -m pipeline``.

It imports nothing before `main` has set the folders in which Python searches for modules.
"""

import gc
import sys

FAILED = 1
USAGE_ERROR = 2
NO_ANALYTICS = {"DVC_NO_ANALYTICS": "true", "DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
"""Variables with which DVC and Prefect send no usage statistics, here and in processes that are started."""


def start() -> None:
    """Run `main` in a process of its own, which ends without the destruction of all objects.

    A stage, and `learner run`, import most of what they use first, and collect garbage from then on.
    """
    if sys.argv[1:2] in (["stage"], ["run"]):
        gc.disable()
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int | None) and "pipeline.cli" in sys.modules:
            from stages.system.processes import end_process

            end_process(end.code or 0)
        raise


def main() -> None:
    """Run the command line, unless the platform or the names of other packages rule it out.

    Both checks come before the first import of ``stages`` and of a module that only Linux has.
    """
    if sys.platform != "linux":
        _exit(describe_platform(sys.platform), FAILED)
    import os

    from pipeline.project.collision import ROOT, find_hidden_stages

    if collision := find_hidden_stages():
        _exit(collision, USAGE_ERROR)
    sys.path.insert(0, str(ROOT))
    import stages  # noqa: F401  the package beside this one, also if another copy is installed

    del sys.path[0]
    from stages.contracts.printing import open_closed_streams

    open_closed_streams()
    for name, value in NO_ANALYTICS.items():
        os.environ.setdefault(name, value)
    from pipeline.project.git import VARIABLES_OF_A_REPOSITORY, refuse_bare_repositories
    from pipeline.project.paths import name_unknown_user, use_private_site_cache

    for name in VARIABLES_OF_A_REPOSITORY:  # also for DVC, and for the processes that are started
        os.environ.pop(name, None)
    refuse_bare_repositories(os.environ)
    name_unknown_user()
    use_private_site_cache()
    from pipeline.cli import main as run_command_line

    run_command_line()


def describe_platform(platform: str) -> str:
    """Return the message for a *platform*, named as by ``sys.platform``, other than Linux."""
    return (
        f"learner runs on Linux only; found platform {platform!r}. It needs Linux for the locks of the run "
        "store (fcntl.flock), for processes that end with their parent (/proc), and for hard links "
        "between the run store and DVC's cache. Use a Linux machine, a Linux container, or WSL 2"
    )


def _exit(message: str, code: int) -> None:
    printable = (character if character.isprintable() or character == "\n" else "�" for character in message)
    sys.stderr.write(f"error: {''.join(printable)}\n")
    sys.exit(code)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # with -m, the current folder, in which a file may have the name of any module
    start()
