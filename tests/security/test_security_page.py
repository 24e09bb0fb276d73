"""SECURITY.md: every sentence has a test, and the commands that it lists are all commands."""

import ast
import hashlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from command_line import walk_commands
from dvc.repo import Repo
from long_tests import long

from pipeline.doctor import environment
from pipeline.doctor.diagnostics import Level

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
TESTS = {
    "tests/contracts/test_plugins.py": {
        "`params.yaml` is code": "test_short_name_is_built_in_and_path_is_imported",
    },
    "tests/security/test_security_page.py": {
        "`dvc.yaml` is code": "test_dvc_passes_the_cmd_of_a_stage_to_a_shell",
        "`prefect.toml`, `.env` and": "test_prefect_runs_what_a_file_in_the_current_folder_names",
        "Records, logs": "test_no_module_unpickles",
        "`learner run`, `resume`": "test_page_lists_every_command_once",
        "`dvc pull`, `dvc exp pull` and": "test_dvc_checkout_writes_outside_of_the_project",
        "No other module opens": "test_only_known_modules_listen",
        "Report it privately": "test_page_names_a_private_way_to_report",
    },
    "tests/security/test_data_files.py": {
        "`learner.json` is data": "test_learner_json_runs_no_code_that_params_do_not_name",
    },
    "tests/security/test_modules.py": {
        "`learner check` imports": "test_command_imports_nothing_of_the_current_folder",
    },
    "tests/security/test_reading.py": {
        "Our commands refuse a project": "test_bare_repository_in_a_project_is_refused",
        "`learner status`": "test_reading_changes_nothing_whatever_the_repository_delivers",
    },
    "tests/security/test_transfers.py": {
        "`learner doctor --deep` reports": "test_names_outside_of_the_clone_are_reported",
        "Our commands refuse a c": "test_settings_of_a_remote_in_a_file_of_the_repository_are_refused",
    },
    "tests/security/test_terminal_text.py": {
        "No command prints characters": "test_names_do_not_control_a_terminal",
        "The tables of": "test_csv_has_no_formula",
    },
    "tests/security/test_passwords.py": {
        "No command prints or stores": "test_commands_print_no_password",
        "`learner doctor` warns of an API": "test_doctor_warns_of_an_open_api_outside_of_loopback",
    },
    "tests/pipeline/comparison/test_watch.py": {
        "`learner compare --watch`": "test_other_hosts_and_other_files_are_refused",
    },
    "tests/security/test_ports.py": {
        "The ranks of one host": "test_store_of_local_ranks_listens_on_loopback",
        "`learner sweep --engine dask`": "test_scheduler_of_dask_refuses_a_client_without_its_certificate",
        "`torchrun` listens": "test_store_of_torch_listens_on_all_interfaces",
    },
    "tests/security/test_prefect_server.py": {
        "With the settings on": "test_request_without_a_login_is_refused",
        "With these settings": "test_page_of_another_origin_may_send_no_request",
        "The processes of `learner serve`": "test_entry_point_and_pull_steps_of_the_api_do_not_run",
    },
    "tests/security/test_overrides.py": {
        "Overrides of a deployment": "test_foreign_code_or_file_is_refused",
    },
    "tests/security/test_user_folders.py": {
        "DVC unpickles": "test_commands_keep_the_state_of_dvc_in_a_folder_of_the_user",
        "Projects of `learner init`": "test_new_project_names_dvc_a_folder_of_the_user",
        "`learner doctor` warns of a clone": "test_doctor_warns_of_a_shared_folder_and_names_another",
        "The locks of GPUs": "test_locks_of_gpus_are_in_a_folder_of_the_user",
    },
    "tests/pipeline/engine/test_project_lock.py": {
        "A `.runs` of several users": "test_lock_file_that_cannot_be_opened_is_reported_with_a_remedy",
    },
    "tests/security/test_supply.py": {
        "`requirements.lock` has": "test_every_package_of_the_lock_has_the_tested_version_and_hashes",
        "The actions of CI": "test_actions_of_workflows_are_pinned_by_commit",
    },
}
"""File to the beginning of each sentence of the page and the test that it has there."""
LISTENERS = {
    "pipeline/comparison/watch.py": {"ThreadingHTTPServer"},
    "pipeline/engine/rank_launcher.py": {"TCPStore", "create_server"},
    "pipeline/sweep/executors.py": {"LocalCluster"},
}
"""The modules that open ports, and the names with which they do."""
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}


def list_sentences():
    """Return the sentences of the page, without the one about this file."""
    bullets = re.findall(r"^\* (.+?)(?=\n\* |\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    joined = [" ".join(each.split()) for each in bullets]
    return [sentence for each in joined for sentence in re.split(r"(?<=\.) (?=[A-Z`])", each)]


def find_tests(path):
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_sentence_of_the_page_has_a_test():
    starts = [start for tests in TESTS.values() for start in tests]
    found = {each: [start for start in starts if each.startswith(start)] for each in list_sentences()}

    assert {each: matching for each, matching in found.items() if len(matching) != 1} == {}
    assert len(found) == len(starts)


@pytest.mark.parametrize("path", TESTS)
def test_every_test_of_the_page_exists(path):
    assert set(TESTS[path].values()) - find_tests(path) == set()


def list_commands(start):
    """Return the commands in the sentence of the page that begins with *start*."""
    [sentence] = [each for each in list_sentences() if each.startswith(start)]
    return set(re.findall(r"`(?:learner )?([\w-]+)`", sentence))


def test_page_lists_every_command_once():
    running = list_commands("`learner run`, `resume`") - {"params.yaml"}
    reading = list_commands("`learner status`") - {"--help"}
    others = {"check"}

    commands = {words[0] for words, _ in walk_commands() if words}
    assert running | reading | others == commands
    assert not reading & (running | others)


@cache
def list_modules():
    """Return the name of each module of both packages, with its imports, calls and classes."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.ClassDef)
    paths = [path for package in ("pipeline", "stages") for path in sorted((ROOT / package).rglob("*.py"))]
    return [
        (
            str(path.relative_to(ROOT)),
            [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)],
        )
        for path in paths
    ]


def last_name(node):
    """Return the last part of a dotted name."""
    return getattr(node, "attr", getattr(node, "id", ""))


def test_no_module_unpickles():
    found = []
    for name, nodes in list_modules():
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(each.name for each in node.names)]
                found += [name for each in names if each.partition(".")[0] in PICKLES]
            if isinstance(node, ast.Call):
                allows = [each.arg for each in node.keywords]
                found += [name] * (last_name(node.func) == "load" and ast.unparse(node.func) == "torch.load")
                found += [name] * ("allow_pickle" in allows and "allow_pickle=False" not in ast.unparse(node))

    assert found == []


def test_only_known_modules_listen():
    signs = {*set.union(*LISTENERS.values()), "HTTPServer", "TCPServer", "UnixServer", "start_server"}
    found = {}
    for name, nodes in list_modules():
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
        used = {last_name(each) for each in (*calls, *bases)} & {*signs, "listen"}
        if used:
            found[name] = used

    assert found == LISTENERS


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of an empty project of DVC, which is the current one."""
    (tmp_path / "project/.dvc").mkdir(parents=True)
    (tmp_path / "project/.dvc/config").write_text("[core]\n    no_scm = true\n")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_dvc_passes_the_cmd_of_a_stage_to_a_shell(project):
    (project / "dvc.yaml").write_text("stages: {a: {cmd: 'echo $((1 + 1)) > made', outs: [made]}}\n")

    with Repo() as repo:
        repo.reproduce()

    assert (project / "made").read_text() == "2\n"


PREFECT_SETTINGS = {
    "prefect.toml": "[logging]\nconfig_path = 'log.yml'\n",
    "pyproject.toml": "[tool.prefect.logging]\nconfig_path = 'log.yml'\n",
    ".env": "PREFECT_LOGGING_SETTINGS_PATH=log.yml\n",
}
"""Files of the current folder to settings of Prefect, whose log.yml runs a program."""


def write_prefect_settings(name):
    """Write the file *name* of `PREFECT_SETTINGS`, with which Prefect makes the file ``made``."""
    Path(name).write_text(PREFECT_SETTINGS[name])
    handler = "{'()': os.system, command: touch made}"
    Path("log.yml").write_text(f"version: 1\nhandlers: {{run: {handler}}}\nroot: {{handlers: [run]}}\n")


def test_prefect_runs_what_a_file_in_the_current_folder_names(project):
    write_prefect_settings("prefect.toml")

    subprocess.run([sys.executable, "-P", "-c", "from prefect import flow"], check=True, capture_output=True)

    assert (project / "made").exists()


@pytest.mark.parametrize("name", [long(name) if name != ".env" else name for name in PREFECT_SETTINGS])
def test_doctor_runs_no_program_of_settings_of_prefect(project, name):
    write_prefect_settings(name)

    [found] = environment.check_patches(timeout_seconds=120)

    assert found.level == Level.OK
    assert not (project / "made").exists()


def test_dvc_checkout_writes_outside_of_the_project(project):
    digest = hashlib.md5(b"x", usedforsecurity=False).hexdigest()
    listed = json.dumps([{"md5": digest, "relpath": "../../outside"}]).encode()
    names = {digest: b"x", f"{hashlib.md5(listed, usedforsecurity=False).hexdigest()}.dir": listed}
    for name, content in names.items():
        path = project / ".dvc/cache/files/md5" / name[:2] / name[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (project / "data.dvc").write_text(f"outs:\n- {{md5: {[*names][1]}, hash: md5, path: data}}\n")

    command = [sys.executable, "-m", "dvc", "checkout", "--force"]  # our commands change DVC in this process
    subprocess.run(command, check=True, capture_output=True)

    assert (project.parent / "outside").read_bytes() == b"x"


def test_page_names_a_private_way_to_report():
    assert "privately" in PAGE.partition("## Report a vulnerability")[2]
