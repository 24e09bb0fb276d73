"""What the machine offers: packages, devices, room for checkpoints, a Prefect API."""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from packaging.requirements import Requirement

from pipeline.doctor.diagnostics import Diagnostic, ok, problem, warning
from pipeline.flows import prefect_api
from pipeline.installation import this_package
from pipeline.params import read_params
from pipeline.project import read_paths, runs_root
from stages.checkpoints.file_names import CHECKPOINT_FOLDER, parse_name
from stages.runs.layout import stores

SHOWN = ("torch", "prefect", "dvc")
ANSWER_SECONDS = 5.0
DEVICE_SECONDS = 30.0
DEVICES = "import json; from stages.learner.devices import available; print(json.dumps(available()))"


def check_packages() -> Iterator[Diagnostic]:
    """Whether what this package needs is installed, in the versions that it needs."""
    package = this_package()
    needs = [Requirement(each) for each in package.requires or []]
    wrong = [each for need in needs if _is_wanted(need) for each in check_requirement(need)]
    yield from wrong
    if not wrong:
        shown = ", ".join(f"{name} {version(name)}" for name in SHOWN)
        yield ok("packages", f"python {python_version()}, learner-pipeline {package.version}, {shown}")
    extras = {name: _has(needs, name) for name in package.metadata.get_all("Provides-Extra") or []}
    extras.pop("test", None)
    there = ", ".join(name for name, has in extras.items() if has)
    lacking = ",".join(name for name, has in extras.items() if not has)
    more = f"; for more: pip install 'learner-pipeline[{lacking}]'" if lacking else ""
    yield ok("extras", f"{there or 'none'}{more}")


def _is_wanted(need: Requirement, extra: str = "") -> bool:
    return need.marker is None or need.marker.evaluate({"extra": extra})


def _has(needs: Iterable[Requirement], extra: str) -> bool:
    own = [need for need in needs if need.marker and _is_wanted(need, extra) and not _is_wanted(need)]
    return not any(finding for need in own for finding in check_requirement(need))


def check_requirement(need: Requirement) -> Iterator[Diagnostic]:
    """What is wrong with the installed version of *need*; nothing where it will do."""
    try:
        there = version(need.name)
    except PackageNotFoundError:
        yield problem("packages", f"{need.name} is not installed", f"pip install '{_spec(need)}'")
        return
    if not need.specifier.contains(there, prereleases=True):
        what = f"{need.name} is {there}, and {need.specifier} is needed"
        yield problem("packages", what, f"pip install '{_spec(need)}'")


def _spec(need: Requirement) -> str:
    return f"{need.name}{need.specifier}"


def check_devices() -> Iterator[Diagnostic]:
    """Which devices torch finds here, in a process of its own, and whether ``fit.device`` is one."""
    command = [sys.executable, "-c", DEVICES]
    try:
        done = subprocess.run(  # noqa: S603  fixed
            command, capture_output=True, text=True, timeout=DEVICE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        yield warning("devices", f"torch did not say in {DEVICE_SECONDS:g} seconds", "try again")
        return
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        yield problem("devices", f"torch does not start: {last}", "install it anew, as pytorch.org says")
        return
    there = json.loads(done.stdout)
    asked = read_params().fit.device
    missing = [each for each in ([asked] if isinstance(asked, str) else asked) if not _is_there(each, there)]
    if missing:
        what = f"params.yaml: fit.device is {', '.join(missing)}; here: {', '.join(there)}"
        yield problem("devices", what, "dvc exp run -S fit.device=auto")
    else:
        yield ok("devices", ", ".join(there))


def _is_there(device: str, there: Iterable[str]) -> bool:
    return device == "auto" or device in there or any(each.split(":")[0] == device for each in there)


def check_disk() -> Iterator[Diagnostic]:
    """Whether there is room for the checkpoints that ``fit.keep`` keeps, and for one more."""
    root = runs_root()
    free = shutil.disk_usage(root if root.exists() else Path()).free
    paths = read_paths()
    places = [*(store / CHECKPOINT_FOLDER for store in stores(root)), paths["checkpoint"]]
    places.append(paths["learner"] / CHECKPOINT_FOLDER)
    size = max(map(_newest_size, places), default=0)
    if not size:
        yield ok("disk", f"{_megabytes(free)} free; what a checkpoint takes is known after build-learner")
        return
    yield check_free_space(free, size, read_params().fit.keep.most)


def check_free_space(free: int, size: int, kept: int) -> Diagnostic:
    """Whether *free* bytes are enough for *kept* checkpoints of *size*, at work and published."""
    at_work, published = size * (kept + 1), 2 * size * kept
    what = (
        f"{_megabytes(free)} free; a checkpoint takes {_megabytes(size)}: a run with {kept} and one more "
        f"{_megabytes(at_work)}, and published, in artifacts and in DVC's cache, {_megabytes(published)} more"
    )
    cure = "make space (`learner runs prune`, `dvc gc --workspace`), or keep fewer: fit.keep"
    if free < at_work:
        return problem("disk", what, cure)
    return warning("disk", what, cure) if free < at_work + published else ok("disk", what)


def _newest_size(folder: Path) -> int:
    """Bytes of the newest checkpoint in *folder*; 0 where there is none."""
    sizes: dict[int, int] = {}
    for path in folder.glob("*-*"):
        if parsed := parse_name(path.name):
            sizes[parsed.epoch] = sizes.get(parsed.epoch, 0) + path.stat().st_size
    return sizes[max(sizes)] if sizes else 0


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def check_prefect() -> Iterator[Diagnostic]:
    """Whether the Prefect API that is configured answers, and whether it is of the version installed here."""
    url = prefect_api.read_setting(prefect_api.URL)
    if not url:
        yield ok("prefect", "no API is configured: runs are not recorded there")
        return
    if not url.startswith(("http://", "https://")):
        yield problem("prefect", f"{prefect_api.URL} is {url}", "it begins with http:// or https://")
        return
    try:
        there = json.loads(prefect_api.request("admin/version", ANSWER_SECONDS))
    except urllib.error.HTTPError as error:
        yield _refused(url, error.code)
    except (OSError, ValueError) as error:
        yield problem(
            "prefect",
            f"{url} is configured, and no Prefect API answers there: {getattr(error, 'reason', error)}",
            f"`prefect server start`, or unset {prefect_api.URL} to run without",
        )
    else:
        here = version("prefect")
        if str(there).split(".")[:2] != here.split(".")[:2]:
            cure = f"pip install 'prefect=={there}', or as new a server"
            yield warning("prefect", f"{url} answers; it is {there}, and {here} is installed here", cure)
        else:
            yield ok("prefect", f"{url} answers; it is {there}")


def _refused(url: str, code: int) -> Diagnostic:
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        cure = "set PREFECT_API_KEY (Prefect Cloud) or PREFECT_API_AUTH_STRING (your own server)"
        return problem("prefect", f"{url} does not let you in: HTTP {code}", cure)
    if code == HTTPStatus.NOT_FOUND and "api.prefect.cloud" in url:
        return ok("prefect", f"{url} answers")
    return problem("prefect", f"{url} answers HTTP {code}", "is the address right? it mostly ends in /api")
