"""The Prefect API that is configured, and the record of a run there, without importing Prefect before it."""

import base64
import json
import os
import ssl
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from pipeline.engine.stage_run import run_stage
from pipeline.project.versions import VERSIONS
from stages.contracts.errors import ParamsError, StageError
from stages.contracts.printing import print_error
from stages.contracts.text import hide_passwords
from stages.runs.layout import UNREACHABLE_API_FILE
from stages.system.files import write_text
from stages.system.processes import ProcessIdentity, to_json

URL = "PREFECT_API_URL"
RECORDING_VARIABLE = "LEARNER_PREFECT"
FLOW_RUN = "LEARNER_FLOW_RUN"
"""Names the flow run that a stage belongs to, in the environment of its process."""
REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
"""Responses of a server that works."""
PROBE_SECONDS = 10.0
"""The time limit of the probe, which may try several addresses of one name."""


class Recording(StrEnum):
    """What a run does if the configured API is unreachable."""

    REQUIRED = "required"
    """It fails before it changes anything."""
    OPTIONAL = "optional"
    """It continues without a record, with a warning."""


def is_configured() -> bool:
    """Return whether ``PREFECT_API_URL`` is set, in the environment or in the active profile of Prefect."""
    return bool(read_setting(URL))


def read_setting(name: str) -> str:
    """Return the setting *name* from the environment or Prefect's active profile; empty if it is not set."""
    if name in os.environ:
        return os.environ[name]
    home = os.environ.get("PREFECT_HOME") or Path.home() / ".prefect"
    path = Path(os.environ.get("PREFECT_PROFILES_PATH") or Path(home, "profiles.toml"))
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError):
        return ""
    active = os.environ.get("PREFECT_PROFILE", content.get("active", ""))
    return str(content.get("profiles", {}).get(active, {}).get(name, ""))


def describe_url() -> str:
    """Return the address of the configured API without a password."""
    return hide_passwords(read_setting(URL))


def read_recording(default: Recording) -> Recording:
    """Return the value of ``LEARNER_PREFECT``, or *default*. Raises `ParamsError` for any other value."""
    text = os.environ.get(RECORDING_VARIABLE) or default
    if text not in list(Recording):
        raise ParamsError(
            f"{RECORDING_VARIABLE} is {text!r}. Set it to {' or '.join(map(repr, map(str, Recording)))}"
        )
    return Recording(text)


def is_recorded(default: Recording) -> bool:
    """Return whether to record a run in Prefect, after a probe of the API that is configured.

    *default* applies if ``LEARNER_PREFECT`` is not set. A warning is printed if an optional record is
    impossible. Raises `StageError` if a required one is.
    """
    is_required = read_recording(default) is Recording.REQUIRED
    if not is_configured():
        if os.environ.get(RECORDING_VARIABLE) == Recording.REQUIRED:
            raise StageError(
                f"{RECORDING_VARIABLE} is 'required', but no Prefect API is configured. Set {URL}"
            )
        return False
    if is_required:
        require_api(f"or {RECORDING_VARIABLE}=optional to run without a record")
    elif problem := probe():
        print_error(f"warning: {_unreachable(problem)}, so this run is not recorded there")
        return False
    return True


def is_stage_recorded(dvc: int | None) -> bool:
    """Return whether to record a stage that process *dvc* started, with one warning for all of its stages.

    A stage of a flow run is recorded with that run.
    """
    if os.environ.get(FLOW_RUN):
        return is_configured()
    if dvc is None or not is_configured() or read_recording(Recording.OPTIONAL) is Recording.REQUIRED:
        return is_recorded(Recording.OPTIONAL)
    if UNREACHABLE_API_FILE.exists() and UNREACHABLE_API_FILE.read_text(encoding="utf-8") == _note(dvc):
        return False
    if is_recorded(Recording.OPTIONAL):
        return True
    write_text(UNREACHABLE_API_FILE, _note(dvc))
    return False


def _note(dvc: int) -> str:
    """Return the note that the other stages of process *dvc* are not recorded either."""
    return json.dumps({"dvc": to_json(ProcessIdentity.of(dvc)), "api": describe_url()})


def require_api(alternative: str = "") -> None:
    """Raise `StageError` if the configured API is unreachable; *alternative* ends the advice."""
    if problem := probe():
        advice = " ".join(filter(None, (f"Start the server, or set {URL} to another,", alternative)))
        raise StageError(f"{_unreachable(problem)}. {advice.rstrip(',')}")


def probe(url: str | None = None, timeout_seconds: float = PROBE_SECONDS) -> str | None:
    """Return why the API at *url*, by default the configured one, is unreachable; None if it responds.

    A refused login or certificate counts as a response, because Prefect has its own settings for both, and so
    does a limit of requests, because Prefect repeats those.
    """
    problems: list[str | None] = []
    address = url or read_setting(URL)
    thread = threading.Thread(target=lambda: problems.append(_probe(address, timeout_seconds)), daemon=True)
    thread.start()
    thread.join(timeout_seconds)  # the lookup of a name has no time limit of its own
    return problems[0] if problems else f"no response within {timeout_seconds:g} s"


def needs_login(timeout_seconds: float) -> bool:
    """Return whether the API refuses a request without a login. Raises `OSError` and `ValueError`."""
    try:
        request("admin/version", timeout_seconds, headers={})
    except urllib.error.HTTPError:
        return True
    return False


def is_on_loopback() -> bool:
    """Return whether the configured API has an address of the loopback interface."""
    host = urlsplit(read_setting(URL)).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def request(
    path: str, timeout_seconds: float, *, headers: Mapping[str, str] | None = None, url: str | None = None
) -> bytes:
    """Return the first 64 KiB of what the API responds below *path*, by default with the login in *headers*.

    Raises `OSError` and `ValueError`.
    """
    url = (url or read_setting(URL)).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise ValueError("it must begin with http:// or https://")
    query = urllib.request.Request(f"{url}/{path}", headers=_headers() if headers is None else dict(headers))  # noqa: S310  checked above
    with urllib.request.urlopen(query, timeout=timeout_seconds) as response:  # noqa: S310  the same
        content: bytes = response.read(1 << 16)
        return content


def _headers() -> dict[str, str]:
    headers: dict[str, str] = {}
    with suppress(ValueError):
        headers |= json.loads(read_setting("PREFECT_CLIENT_CUSTOM_HEADERS") or "{}")
    if key := read_setting("PREFECT_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    elif login := read_setting("PREFECT_API_AUTH_STRING"):
        headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    return headers


def _probe(url: str, timeout_seconds: float) -> str | None:
    try:
        content = request("health", timeout_seconds, url=url)
    except urllib.error.HTTPError as error:
        is_refusal = error.code in REFUSALS
        is_cloud = error.code == HTTPStatus.NOT_FOUND and "api.prefect.cloud" in url
        return None if is_refusal or is_cloud else f"HTTP {error.code} from {error.url}"
    except TimeoutError:
        return f"no response within {timeout_seconds:g} s"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return None if isinstance(reason, ssl.SSLCertVerificationError) else str(reason)
    except Exception as error:  # noqa: BLE001  http.client's own, for what is not HTTP
        return f"the response is not HTTP ({type(error).__name__})"
    return "it responds with a web page" if content.lstrip().startswith(b"<") else None


def _unreachable(problem: str) -> str:
    return hide_passwords(f"the Prefect API at {read_setting(URL)} is unreachable ({problem})")


def run_stage_of_dvc(name: str, dvc: int | None) -> None:
    """Run stage *name* as a Prefect task run if an API is configured, otherwise as a plain function.

    *dvc* is the process that DVC runs in, if any. If the API is unreachable, a warning is printed, and the
    stage runs without a record. Prefect is imported only if an API is configured.
    """
    if name in VERSIONS and is_stage_recorded(dvc):
        os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
        if import_module("pipeline.flows.task_run").run_as_task(name):
            return
        print_error(f"warning: {describe_url()} stopped responding, so this run is not recorded there")
        if dvc is not None:
            write_text(UNREACHABLE_API_FILE, _note(dvc))
    run_stage(name)
