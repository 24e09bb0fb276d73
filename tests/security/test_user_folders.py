"""DVC's state, which it unpickles, and the locks of GPUs are in folders that only their user can reach."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from dvc.repo import Repo
from forked_commands import run_in_pipe

from pipeline.doctor import environment
from pipeline.doctor.diagnostics import Level
from pipeline.engine.project_copy import freeze, isolate_site_cache, temporary_copy
from pipeline.project.paths import SITE_CACHE_VARIABLE, is_private, make_user_folder, use_private_site_cache
from pipeline.sweep.job import claim_devices

ROOT = Path(__file__).parents[2]


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Return the folder for caches of this user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SITE_CACHE_VARIABLE, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return the folder of a project of git and DVC, which is the current one."""
    folder = tmp_path / "project"
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc/config").touch()
    (folder / ".dvc/.gitignore").write_text("/config.local\n")
    (folder / "dvc.yaml").write_text("stages: {}\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", *arguments]
        subprocess.run(command, cwd=folder, check=True)
    monkeypatch.chdir(folder)
    return folder


def test_commands_keep_the_state_of_dvc_in_a_folder_of_the_user(project, cache):
    ended = run_in_pipe(project, "compare", XDG_CACHE_HOME=str(cache))

    assert "Traceback" not in ended.text
    assert mode_of(cache / "learner/dvc") == 0o700
    assert list((cache / "learner/dvc/repo").iterdir())


def test_user_without_a_name_and_a_home_folder_reads_a_project(project, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import pwd\n\npwd.getpwuid = {}.__getitem__\n")
    unset = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"

    command = [sys.executable, "-m", "pipeline", "compare"]
    done = subprocess.run(command, cwd=project, env=environment, check=False, capture_output=True, text=True)

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_folder_that_others_can_reach_is_closed(cache):
    (cache / "learner/dvc").mkdir(parents=True)
    (cache / "learner/dvc").chmod(0o777)

    assert mode_of(make_user_folder("dvc")) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_folder_of_another_user_is_not_used(cache):
    (cache / "learner/dvc").mkdir(parents=True)
    os.chown(cache / "learner/dvc", 1, 1)
    environment = {}

    use_private_site_cache(environment)

    assert environment == {}
    with pytest.raises(PermissionError, match="not a folder of this user"):
        make_user_folder("dvc")


def test_link_in_place_of_the_folder_is_not_followed(cache, tmp_path):
    (cache / "learner").mkdir(parents=True)
    (cache / "learner/dvc").symlink_to(tmp_path)

    with pytest.raises(PermissionError):
        make_user_folder("dvc")


def test_folder_that_the_user_has_named_is_kept(tmp_path):
    environment = {SITE_CACHE_VARIABLE: str(tmp_path)}

    use_private_site_cache(environment)

    assert environment == {SITE_CACHE_VARIABLE: str(tmp_path)}


def test_copy_of_a_project_has_its_state_in_a_folder_of_the_user(project, tmp_path):
    (tmp_path / "copies").mkdir()
    with temporary_copy(freeze(project), tmp_path / "copies/1.copy") as folder:
        state = Path(isolate_site_cache(folder)[SITE_CACHE_VARIABLE])

        assert mode_of(state) == 0o700
        with Repo(str(folder)) as repo:
            assert Path(repo.site_cache_dir).is_relative_to(state)


def test_new_project_names_dvc_a_folder_of_the_user(tmp_path, cache):
    ended = run_in_pipe(tmp_path, "init", "new", XDG_CACHE_HOME=str(cache))

    assert ended.code == 0, ended.text
    with Repo(str(tmp_path / "new")) as repo:
        assert Path(repo.site_cache_dir).is_relative_to(cache / "learner/dvc")
    ignored = subprocess.run(
        ["git", "check-ignore", "-q", ".dvc/config.local"], cwd=tmp_path / "new", check=False
    )
    assert ignored.returncode == 0


@pytest.mark.parametrize("makefile", ["Makefile", "pipeline/scaffold/template/Makefile"])
def test_make_keeps_the_state_of_dvc_in_a_folder_of_the_user(makefile, tmp_path, cache):
    show = 'show:; @mkdir -p -m 700 "$$DVC_SITE_CACHE_DIR"; echo "$$DVC_SITE_CACHE_DIR"'
    command = ["make", "--no-print-directory", "-f", str(ROOT / makefile), "--eval", show, "show"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert Path(done.stdout.strip()) == cache / "learner/dvc"
    assert is_private(cache / "learner/dvc")
    assert '@mkdir -p -m 700 "$$DVC_SITE_CACHE_DIR"\n\tdvc repro\n' in (ROOT / makefile).read_text()


@pytest.fixture
def set_variable(project, monkeypatch):
    """Return a function that sets the variable of DVC in the environment with which doctor was started."""
    start = project / "environment"
    start.write_bytes(b"A=B\0")
    monkeypatch.setattr(environment, "START_ENVIRONMENT", start)
    return lambda folder: start.write_bytes(f"{SITE_CACHE_VARIABLE}={folder}\0".encode())


@pytest.mark.usefixtures("set_variable")
def test_doctor_warns_of_a_shared_folder_and_names_another(cache):
    [before] = environment.check_state_folder()
    before.fix()
    [after] = environment.check_state_folder()

    assert (before.level, after.level) == (Level.WARNING, Level.OK)
    assert str(environment.SHARED_FOLDER) in before.message
    with Repo() as repo:
        assert Path(repo.site_cache_dir).is_relative_to(cache / "learner/dvc")


@pytest.mark.parametrize(("mode", "level"), [(0o700, "ok"), (0o755, "warning"), (0o770, "warning")])
def test_doctor_checks_the_folder_that_the_user_has_named(set_variable, mode, level):
    with TemporaryDirectory() as folder:  # that of pytest is in one of the user
        Path(folder).chmod(mode)
        set_variable(folder)

        [found] = environment.check_state_folder()

    assert found.level == level


def test_locks_of_gpus_are_in_a_folder_of_the_user(cache):
    with claim_devices(["0"], 1, lambda: True):
        [folder] = (cache / "learner").iterdir()

        assert mode_of(folder) == 0o700
        assert [each.name for each in folder.iterdir()] == ["lock"]
