"""The commands that run stages: ``learner run``, ``resume`` and ``serve``, and ``stage`` for dvc.yaml."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.commands.envelope import EventRenderer
from pipeline.commands.options import Quiet, SetParams, Verbose, argument, flag, option, set_verbosity
from pipeline.commands.results import Resumed, StageOutcomes
from pipeline.engine.error_reports import describe_user_error
from pipeline.project.paths import is_copy
from pipeline.project.yaml_files import read_definition
from stages.contracts.errors import ParamsError, StageError, UserCodeError
from stages.contracts.events import Renderers
from stages.contracts.printing import print_error, print_line
from stages.system.processes import is_alive

Events = Annotated[
    bool,
    flag("--events", "Write a line of JSON for each event to standard output, and text to standard error."),
]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.engine.reproduce import Outcome
    from stages.contracts.events import Renderer


def run(
    targets: Annotated[
        list[str],
        argument("Stages to bring up to date, with the stages that they depend on.", "all", metavar="STAGE"),
    ] = [],  # noqa: B006  never changed
    *,
    set_param: SetParams = [],  # noqa: B006  never changed
    force: Annotated[
        bool, flag("--force", "Run the stages although their dependencies are unchanged.", "-f")
    ] = False,
    downstream: Annotated[
        bool, flag("--downstream", "Bring the named stages and those that depend on them up to date.")
    ] = False,
    events: Events = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> StageOutcomes:
    """Bring the five stages up to date in one process.

    Record them as a Prefect flow run if a Prefect API is configured, and print the outcome of each stage.
    Stages whose dependencies are unchanged do not run. Params that -S sets stay in params.yaml after a run
    that has completed; after any other run, params.yaml is restored. The options are those of `dvc repro`.

    Example: learner run -S fit.num_epochs=30
    """
    report = StageReport(EventRenderer() if events else None)
    with set_verbosity(quiet=quiet, verbose=verbose):
        run_stages(report, set_param, targets, downstream=downstream, force=force)
    return StageOutcomes(report.outcomes)


def resume(
    rev: Annotated[str, argument("Experiment, tag, branch or commit of the run.")],
    *,
    epoch: Annotated[int, option("Epoch to resume after.", min=1)],
    set_param: SetParams = [],  # noqa: B006  never changed
    weights_only: Annotated[
        bool,
        flag("--weights-only", "Load the weights only, and start with a new optimizer and a new schedule."),
    ] = False,
    start: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the stages, or only write params.yaml.", metavar="")
    ] = True,
    events: Events = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> Resumed:
    """Resume training from a checkpoint of any run that DVC tracks.

    Write the params of the run to params.yaml, with its full SHA and the epoch in build_learner.checkpoint,
    print which differ from those in the file before, and run the stages.

    Example: learner resume exp-name --epoch 5 -S fit.num_epochs=30
    """
    from pipeline.engine.lock import project_lock
    from pipeline.project.params import PARAMS
    from pipeline.project.revisions.revision import restore_params_unless_accepted, set_checkpoint

    with project_lock():
        before = PARAMS.read_bytes() if PARAMS.exists() else b""
        sha, changes = set_checkpoint(rev, epoch, weights_only=weights_only, overrides=set_param)
    for change in (f"build_learner.checkpoint is epoch {epoch} of {sha}", *changes):
        print_line(f"params.yaml: {change}")
    report = StageReport(EventRenderer() if events else None)
    if start:
        kept = restore_params_unless_accepted(before, report.outcomes)
        with set_verbosity(quiet=quiet, verbose=verbose), kept:
            run_stages(report)
    return Resumed(sha, epoch, changes, report.outcomes)


@dataclass
class StageReport:
    """The outcomes of the stages of a run, which are printed and, with a renderer, written as events."""

    renderer: EventRenderer | None
    outcomes: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, renderer: "Renderer | None" = None) -> None:
        """Run the body of stage *name*, which *renderer* shows too."""
        from pipeline.engine.stage_run import run_stage

        if self.renderer:
            self.renderer.stage(name, "running")
            renderer = Renderers([renderer, self.renderer]) if renderer else self.renderer
        run_stage(name, renderer)

    def report(self, name: str, outcome: "Outcome") -> None:
        """Report the *outcome* of stage *name*."""
        self.outcomes[name] = outcome
        print_line(f"{name}: {outcome}")
        if self.renderer:
            self.renderer.stage(name, outcome)


def run_stages(
    report: StageReport,
    overrides: "Sequence[str]" = (),
    targets: "Sequence[str]" = (),
    *,
    downstream: bool = False,
    force: bool = False,
) -> None:
    """Run *targets*, by default all stages, and report the outcome of each to *report*.

    The stages before them run too if they are out of date, or with *downstream* those after them, and with
    *force* also those that are up to date. *overrides* are params in the syntax of DVC's ``-S``, which are
    set in params.yaml.
    """
    from pipeline.project.reads import record_reads

    record_reads().record_loaded()
    from pipeline.engine.lock import project_lock
    from pipeline.engine.params_journal import edit_params
    from pipeline.engine.reproduce import reproduce, select_stages
    from pipeline.engine.watchdog import fork_watchdog
    from pipeline.flows import prefect_api
    from pipeline.project.check import check_stages
    from stages.renderers.plain import read_renderer_name

    check_stages(read_definition())
    stages = select_stages(targets, downstream=downstream)
    _check_params(stages, overrides)  # before a process is started or an output is removed
    read_renderer_name()
    is_recorded = prefect_api.is_recorded(prefect_api.Recording.REQUIRED)
    with project_lock():
        fork_watchdog(os.getpid())
        with edit_params(overrides):
            if is_recorded:
                from pipeline.flows.flow import learner, run_from_command_line

                with run_from_command_line(report.report, report.run) as has_begun:
                    options = {"downstream": downstream, "force": force}
                    learner(list(overrides), experiment=False, targets=list(targets), **options)
                is_recorded = has_begun.is_set()
            if not is_recorded:
                for name in stages:
                    report.report(name, reproduce(name, run=report.run, force=force))


def _check_params(stages: "Sequence[str]", overrides: "Sequence[str]") -> None:
    """Raise `ParamsError` if params.yaml with *overrides* is not valid.

    Raise `StageError` if dvc.yaml lacks a dependency of *stages*; with *overrides*, each stage checks that.
    """
    if overrides:
        from pipeline.project.params_edit import override_params

        override_params(overrides)
    else:
        from pipeline.project.check import check_params
        from pipeline.project.dependencies import check_deps
        from pipeline.project.params import read_params

        params = read_params()
        check_params(params)
        check_deps(params, stages)


def stage(name: Annotated[str, argument("Name of the stage in dvc.yaml.")]) -> None:
    """Run one stage, as the commands in dvc.yaml do.

    To bring a stage up to date, use `dvc repro NAME`: this command does not check whether the stage must run,
    and does not update dvc.lock.

    Example: learner stage fit
    """
    from pipeline.project.reads import record_reads

    record_reads().record_loaded()
    from pipeline.engine.process_tree import terminate_with_parent
    from pipeline.engine.rank_process import is_rank, is_rank_of_torchrun

    if is_rank_of_torchrun():
        terminate_with_parent(os.getppid())
    if is_rank():
        from pipeline.engine.stage_run import run_stage

        run_stage(name)
    else:
        _run_with_lock(name)


def _run_with_lock(name: str) -> None:
    """Run stage *name*, and repair what DVC was writing if the stage fails or DVC is killed."""
    from pipeline.engine.lock import project_lock
    from pipeline.engine.params_journal import restore_params
    from pipeline.engine.process_tree import ancestors_up_to_dvc, find_dvc, is_dvc_stage, terminate_with
    from pipeline.engine.watchdog import fork_watchdog
    from pipeline.flows.prefect_api import run_stage_of_dvc

    waiting = ancestors_up_to_dvc() if is_dvc_stage(name) else []
    dvc = find_dvc(waiting)
    with ExitStack() as stack:
        try:
            if dvc and not is_copy():  # a copy is removed, which a watchdog would disturb
                fork_watchdog(dvc)
            if waiting:
                terminate_with(waiting)
            stack.enter_context(project_lock(waiting, dvc=dvc))
            if restore_params(print_error):  # DVC chose the stage with the overrides in params.yaml
                raise StageError(f"{name} was not run with them. Run the same command again")
            run_stage_of_dvc(name, dvc)
        except BaseException as error:
            if dvc and is_alive(dvc):  # otherwise another DVC process may be writing the outputs
                from pipeline.engine.reproduce import restore_outputs

                restore_outputs(name)
            if isinstance(error, SystemExit):  # with code 0, DVC would record the restored outputs
                raise UserCodeError(f"{name}: {describe_user_error(error)}") from error
            raise


def serve(
    targets: Annotated[
        list[str] | None, argument("Stages to run, with what they depend on.", "all stages", metavar="STAGE")
    ] = None,
    *,
    cron: Annotated[
        str | None, option('Schedule in cron syntax, for example "0 3 * * *".', "no schedule")
    ] = None,
    interval: Annotated[
        float | None, option("Seconds between runs, instead of --cron.", "no schedule", min=1)
    ] = None,
    timezone: Annotated[str, option("Time zone of --cron.")] = "UTC",
    name: Annotated[str, option("Name of the deployment.")] = "nightly",
    set_param: SetParams = [],  # noqa: B006  never changed
    experiment: Annotated[
        bool,
        typer.Option(
            "--experiment/--workspace", help="Run as an isolated experiment, or in the workspace.", metavar=""
        ),
    ] = True,
    push: Annotated[bool, flag("--push", "Push the cache and experiments after each run.")] = False,
    timeout: Annotated[
        float | None, option("Seconds after which a run saves and stops.", "no limit", min=1)
    ] = None,
    on_collision: Annotated[
        Literal["wait", "cancel"],
        option("What a run does while another run of this deployment is in progress."),
    ] = "wait",
    missed: Annotated[
        Literal["drop", "run"],
        option("What happens to runs of the schedule that were missed before the start."),
    ] = "drop",
    allow_code: Annotated[
        bool, flag("--allow-code", "Let overrides of runs set import paths and files that are not committed.")
    ] = False,
) -> None:
    """Run the pipeline on a schedule, as a Prefect deployment that this process serves.

    It needs a Prefect server, whose address is PREFECT_API_URL, and serves until it is interrupted. Without a
    schedule, it waits for runs that `prefect deployment run` starts.

    Example: learner serve --cron "0 3 * * *" -S fit.num_epochs=30 --push
    """
    from pipeline.flows import prefect_api
    from stages.contracts.fields import MAX_SECONDS

    for switch, seconds in (("--interval", interval), ("--timeout", timeout)):
        if seconds is not None and not seconds <= MAX_SECONDS:
            raise ParamsError(
                f"{switch} is {seconds:g}. Set it to a finite number of seconds, at most {MAX_SECONDS}"
            )
    prefect_api.read_recording(prefect_api.Recording.REQUIRED)
    if prefect_api.is_configured():
        prefect_api.require_api()
    from pipeline.flows.serving import Plan, serve_deployment

    parameters = {
        "overrides": set_param,
        "experiment": experiment,
        "push": push,
        "targets": targets or [],
        "timeout_seconds": timeout,
    }
    plan = Plan(
        name, cron, interval, timezone, cancels=on_collision == "cancel", drops_missed=missed == "drop"
    )
    serve_deployment(plan, parameters, allow_code=allow_code)
