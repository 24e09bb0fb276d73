"""Runs are collected from git and DVC's cache, in any folder of a repository."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.comparison.collection import collect_runs, read_samples
from pipeline.project.paths import parse_paths
from pipeline.project.revisions.files import LocalCache, RevisionFiles, read_revisions
from pipeline.project.revisions.names import resolve
from stages.contracts.errors import ParamsError, StageError

ROOT = Path(__file__).parents[3]
FILES = ("dvc.yaml", "params.yaml", "dvc.lock", ".dvc/config")
WHEN = "2026-03-04T05:06:07+0530"


def run_git(*arguments):
    """Run git in the current folder and return its output."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(["git", *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(name, content=None):
    """Commit all files and return the SHA; with *content* as params, HEAD stays at its commit."""
    if content is not None:
        Path("params.yaml").write_bytes(content)
    run_git("add", "-A")
    run_git("commit", "-qm", name)
    sha = run_git("rev-parse", "HEAD")
    if content is not None:
        run_git("reset", "-q", "--hard", "HEAD~1")
    return sha


@pytest.fixture(params=["", "project"])
def head(request, tmp_path, monkeypatch):
    """Return the first commit of a project, at the root of a git repository or below it."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", WHEN)
    folder = tmp_path / request.param
    (folder / ".dvc").mkdir(parents=True)
    for name in FILES:
        shutil.copy2(ROOT / name, folder / name)
    monkeypatch.chdir(tmp_path)
    run_git("init", "-q")
    if request.param:
        (folder / ".dvc/config").write_text("[core]\n    analytics = false\n")
    monkeypatch.chdir(folder)
    return commit("The project")


def save_experiment(head, name, content):
    """Save an experiment *name* on *head* with *content* as params, and return its SHA."""
    sha = commit(name, content)
    run_git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", sha)
    return sha


def test_names_resolved_together_equal_names_resolved_one_by_one(head):
    shas = {
        name: save_experiment(head, name, f"fit: {{seed: {name[-1]}}}\n".encode())
        for name in ("exp-1", "exp-2")
    }
    run_git("tag", "exp-2", head)  # names of git have precedence over experiments

    found = read_revisions(["exp-1", "exp-2", "workspace", "HEAD", head[:10]])

    assert {name: files.sha for name, files in found.items()} == {
        "exp-1": shas["exp-1"],
        "exp-2": head,
        "workspace": None,
        "HEAD": head,
        head[:10]: head,
    }
    assert found["exp-1"].read_tracked("params.yaml") == {"fit": {"seed": 1}}
    assert found["exp-1"].committed.isoformat() == "2026-03-04T05:06:07+05:30"


@pytest.mark.parametrize("name", ["workspace", "side", "v1"])
def test_experiment_with_the_name_of_another_revision_is_listed_by_its_sha(head, name):
    if name != "workspace":
        run_git("tag" if name == "v1" else "branch", name, head)
    other = save_experiment(head, "another", b"{}\n")
    sha = save_experiment(head, name, b"fit: {seed: 1}\n")

    found = collect_runs().runs

    assert [(run.name, run.sha) for run in found] == [
        ("workspace", None),
        ("another", other),
        (sha[:10], sha),
    ]
    assert f"listed by its SHA. Run `dvc exp rename {name} NEW_NAME`" in " ".join(found[2].notes)


@pytest.mark.parametrize("name", ["", " "])
def test_blank_name_is_no_revision(head, name):
    message = f"{name!r} names no revision. Name an experiment"

    with pytest.raises(ParamsError, match=message):
        read_revisions(["HEAD", name])
    with pytest.raises(ParamsError, match=message):
        resolve(name)


def test_ambiguous_experiment_name_is_an_error(head):
    sha = save_experiment(head, "twice", b"{}\n")
    run_git("update-ref", f"refs/exps/{sha[:2]}/{sha[2:]}/twice", sha)
    run_git("commit", "-q", "--allow-empty", "-m", "Another baseline")

    with pytest.raises(StageError, match="ambiguous Git revision 'twice'"):
        read_revisions(["HEAD", "twice"])


@pytest.mark.parametrize("name", ["dvc.lock", "params.yaml"])
@pytest.mark.parametrize("content", [b"a: [\n", b"a: \xff\n"])
def test_error_in_a_file_of_a_commit_names_the_run(head, name, content):
    Path(name).write_bytes(content)
    sha = commit("Corrupt a file")

    with pytest.raises(StageError, match=f"run {sha[:8]}: {name} is not "):
        collect_runs([sha[:8]])


def test_commit_without_a_pipeline_has_no_metrics_and_a_note(head):
    run_git("rm", "-q", "dvc.yaml", "dvc.lock")
    sha = commit("Remove the pipeline")

    _, run = collect_runs([head, sha]).runs
    assert (run.metrics, run.cached, run.notes) == (
        {},
        False,
        ("no stage has run: dvc.lock has no params",),
    )


@pytest.mark.parametrize(
    ("value", "notes"), [("1.0", ()), ("true", ("params.yaml was edited since: fit.size",))]
)
def test_note_lists_the_params_whose_value_was_edited(head, value, notes):
    Path("dvc.lock").write_text(
        "schema: '2.0'\nstages: {fit: {cmd: fit, params: {params.yaml: {fit: {size: 1}}}}}\n"
    )
    Path("params.yaml").write_text(f"fit: {{size: {value}}}\n")

    [run] = collect_runs(["workspace"]).runs

    assert tuple(note for note in run.notes if "edited" in note) == notes


def write_lock(*, scale, code, data):
    params = {"params.yaml": {"load_data": {"seed": 1}}, "points.yaml": {"points": {"scale": scale}}}
    stages = {
        "make": {"cmd": "make", "params": params, "outs": [{"path": "raw", "md5": data}]},
        "fit": {
            "cmd": "fit",
            "deps": [{"path": "raw/points.npz", "md5": data}, {"path": "net.py", "md5": code}],
            "params": {"stages/fit.py": {"VERSION": "7"}, "versions.yaml": {"fit": "7"}},
        },
    }
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))


def test_params_of_every_file_are_compared(head):
    """A stage of the user may have params in a file of its own, and `learner sweep -S FILE:KEY` sets them."""
    write_lock(scale=2.0, code="a" * 32, data="b" * 32)

    [run] = collect_runs(["workspace"]).runs

    assert run.params == {"load_data.seed": 1, "points.yaml:points.scale": 2.0}


def test_inputs_of_a_run_are_what_no_stage_has_written(head):
    inputs = []
    for code, data in (("a", "b"), ("a", "c"), ("d", "b")):
        write_lock(scale=2.0, code=code * 32, data=data * 32)
        inputs.append(collect_runs(["workspace"]).runs[0].inputs)

    assert inputs[0] == inputs[1] != inputs[2]


@pytest.mark.parametrize(
    ("text", "plots"),
    [
        ("[paths.yaml, {paths: {plots: p}}]", "p"),
        ("[3, null, {paths: {plots: p}}]", "p"),
        ("3", None),
        ("null", None),
        ("[{paths: p}]", None),
        ("[{paths: {plots: 4}}]", None),
    ],
)
def test_vars_that_are_not_sections_are_no_error(head, text, plots):
    Path("dvc.yaml").write_text(f"vars: {text}\n")

    files = read_revisions(["workspace"])["workspace"]

    assert files.paths == ({} if plots is None else {"plots": Path(plots)})


@pytest.mark.parametrize(("options", "cached"), [("{cache: false}", True), ("{cache: true}", False)])
@pytest.mark.parametrize("path", ["m.json", "${paths.metrics}", "./${paths.metrics}"])
def test_output_that_dvc_does_not_cache_is_not_missing_in_the_cache(head, path, options, cached):
    output = f"{{'{path}': {options}}}"
    Path("dvc.yaml").write_text(
        f"vars: [{{paths: {{metrics: m.json}}}}]\nstages: {{fit: {{cmd: fit, outs: [{output}]}}}}\n"
    )
    Path("dvc.lock").write_text(
        f"schema: '2.0'\nstages: {{fit: {{cmd: fit, outs: [{{path: m.json, md5: {'a' * 32}}}]}}}}\n"
    )

    [run] = collect_runs(["workspace"]).runs

    assert run.cached == cached
    assert any("not all outputs are in the cache" in note for note in run.notes) == (not cached)


def test_path_that_is_not_text_is_an_error_with_advice():
    with pytest.raises(ParamsError, match=r"dvc.yaml: vars.paths.plots must be a path; found 4. Write it as"):
        parse_paths({"vars": [{"paths": {"plots": 4}}]}, "dvc.yaml")


def test_folder_without_a_pipeline_is_refused(head, monkeypatch):
    Path("empty").mkdir()
    monkeypatch.chdir("empty")

    for revs in (None, ["workspace", head]):
        with pytest.raises(ParamsError, match=r"no run has a dvc.yaml in .*/empty. Run the command in the"):
            collect_runs(revs)


@pytest.mark.parametrize("revs", [None, ["workspace"]])
def test_repository_without_a_commit_is_refused(revs, tmp_path, monkeypatch):
    (tmp_path / ".dvc").mkdir()
    monkeypatch.chdir(tmp_path)
    run_git("init", "-q")

    with pytest.raises(ParamsError, match="has no git commit, and experiments need one. Run `git add`"):
        collect_runs(revs)


def test_samples_are_those_of_the_last_epoch_of_each_split_that_has_some(tmp_path):
    def store(content, suffix=""):
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest() + suffix
        path = LocalCache(tmp_path).path_of(md5)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return md5

    names = ("epoch-9/a-1.png", "epoch-10/a-1.png", "epoch-10/a-2.txt", "epoch-11/Loss.log")
    entries = [{"md5": store(name.encode()), "relpath": name} for name in names]
    outs = [{"path": "artifacts/valid", "md5": store(json.dumps(entries).encode(), ".dir")}]
    lock = json.dumps({"schema": "2.0", "stages": {"fit": {"cmd": "fit", "outs": outs}}})
    definition = (ROOT / "dvc.yaml").read_bytes()

    files = RevisionFiles({"dvc.yaml": definition, "dvc.lock": lock.encode()}, LocalCache(tmp_path))

    assert read_samples(files) == {f"valid/{name}": name.encode() for name in names[1:3]}
