"""The points of a sweep and their names."""

import importlib
import json
import subprocess

import pytest
from pages import ROOT
from ruamel.yaml import YAML

from pipeline.engine.project_copy import FrozenProject, freeze
from pipeline.sweep.plan import (
    MAX_NAME_LENGTH,
    Point,
    expand,
    fold,
    is_result,
    list_gpus,
    name_with_hash,
    plan_points,
    repeat,
    short_point_names,
)
from stages.contracts.errors import ParamsError

RATE_RANGE = "build_learner.optimizer.learning_rate=range(0.001,0.004,0.001)"


def short_names(*set_params, **options):
    return short_point_names(expand(set_params, **options))


@pytest.mark.parametrize(
    ("set_params", "expected"),
    [
        (["fit.batch_size=32,64"], ["batch_size=32", "batch_size=64"]),
        (["fit.batch_size=choice(32,64)", "fit.num_epochs=1"], ["batch_size=32", "batch_size=64"]),
        ([RATE_RANGE], ["learning_rate=0.001", "learning_rate=0.002", "learning_rate=0.003"]),
        (["a.seed=1,2", "b.seed=3"], ["seed=1", "seed=2"]),
        (["a.seed=1,2", "b.seed=3,4"], [f"a.seed={a},b.seed={b}" for a in (1, 2) for b in (3, 4)]),
        (["+fit.keep.last=3,null"], ["last=3", "last=null"]),
        (["fit.metrics=[loss,accuracy],[loss]"], ["metrics=loss,accuracy", "metrics=loss"]),
        (['model.kind="my_lab.nets:Wide",cnn'], ["kind=my_lab.nets-Wide", "kind=cnn"]),
        (["other.yaml:width=1,2"], ["width=1", "width=2"]),
        (["fit.batch_size=32,32"], ["batch_size=32"]),
        (["fit.batch_size=32"], ["batch_size=32"]),
    ],
)
def test_name_contains_the_values_that_vary(set_params, expected):
    assert short_names(*set_params) == expected


@pytest.mark.parametrize("value", ["a/b", "x..y", "a@{b}", "'  ~^:?*\\\\ '", "name.lock", "ü", "-x", "." * 9])
def test_every_name_is_valid_in_a_git_ref(value):
    point = expand([f"a.key='{value}'"] if "'" not in value else [f"a.key={value}"])[0]

    for name in (*short_point_names([point]), name_with_hash(point, {"a": value})):
        assert "/" not in name
        subprocess.run(["git", "check-ref-format", f"refs/exps/ab/cdef/{name}"], check=True)


def test_points_with_the_same_short_name_are_named_with_a_hash():
    points = expand(["a.key='x y','x:y'", f"a.other={'v' * MAX_NAME_LENGTH}"])
    assert short_point_names(points) == ["key=xy", "key=x-y"]

    same_name = expand(["a.key='x:y','x/y'"])
    assert short_point_names(same_name) == ["", ""]
    assert short_point_names(expand([f"a.key={'v' * MAX_NAME_LENGTH},w"])) == ["", "key=w"]
    unique = {name_with_hash(each, {"key": each.varying}) for each in same_name}
    assert len(unique) == 2
    assert all(name.startswith("key=x-y-") for name in unique)


def test_larger_draw_starts_with_the_smaller_one_and_repeats_no_point():
    grid = ["a.x=range(0,10)", "a.y=range(0,10)"]

    smaller, larger = (short_names(*grid, draw=count, seed=7) for count in (10, 20))

    assert len(set(larger)) == 20
    assert larger[:10] == smaller == short_names(*grid, draw=10, seed=7)
    assert smaller != short_names(*grid, draw=10, seed=8)
    assert sorted(short_names(*grid, draw=1000)) == sorted(short_names(*grid))


def test_shuffle_is_deterministic():
    assert short_names("a.x=shuffle(range(0,50))") == short_names("a.x=shuffle(range(0,50))")


@pytest.mark.parametrize(
    ("set_params", "message"),
    [
        (["a.x=1,2", "a.x=3,4"], "-S sets params.yaml:a.x twice. Join the values, as in a.x=1,2"),
        (["a.x=range(1,0)"], "the grid has no points"),
    ],
)
def test_duplicate_key_or_empty_grid_is_an_error(set_params, message):
    with pytest.raises(ParamsError, match=message):
        expand(set_params)


@pytest.mark.parametrize(
    "arguments", [[], ["fit.batch_size"], ["a=interval(0,1)"], ["a=glob(*)"], ["a=choice("]]
)
def test_invalid_syntax_is_an_error(arguments):
    with pytest.raises(ParamsError):
        expand(arguments)


@pytest.mark.parametrize(
    ("fit", "gpus"),
    [
        ({}, ["auto"]),
        ({"device": "cpu"}, []),
        ({"device": ["cpu", "cpu"]}, []),
        ({"device": "cuda:0"}, ["cuda:0"]),
        ({"device": ["cuda:0", "cuda:1"]}, ["cuda:0", "cuda:1"]),
    ],
)
def test_point_uses_the_gpus_that_its_params_name(fit, gpus, tmp_path):
    base = FrozenProject(tmp_path, tmp_path, "HEAD", "HEAD")

    assert list_gpus(base, {"params.yaml": {"fit": fit}}) == gpus


@pytest.mark.parametrize(("device", "gpus"), [("cpu", []), ("cuda:1", ["cuda:1"])])
def test_point_of_another_params_file_uses_the_gpus_in_params_yaml(device, gpus, project):
    project.edit("params.yaml", "device: auto", f"device: {device}")
    (project.folder / "data.yaml").write_text("scale: 1\n")
    project.ok("git", "add", "data.yaml")
    base = freeze(project.folder)

    (planned,) = plan_points(base, expand(["data.yaml:scale=2"]))

    assert (planned.mistake, list_gpus(base, planned.params)) == ("", gpus)


def test_mistake_in_params_yaml_is_one_of_a_point_of_another_params_file(project):
    project.edit("params.yaml", "device: auto", "device: 5")
    (project.folder / "data.yaml").write_text("scale: 1\n")
    project.ok("git", "add", "data.yaml")

    (planned,) = plan_points(freeze(project.folder), expand(["data.yaml:scale=2"]))

    assert "fit.device" in planned.mistake


def test_plan_of_a_finished_point_parses_one_file_and_starts_no_process(tmp_path, monkeypatch):
    """The file is params.yaml of its experiment; one process of git reads those of all points."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    points = expand([importlib.import_module("many_runs").make_points(tmp_path, 12)])
    base, parses, processes = freeze(tmp_path), [], []
    load, start = YAML.load, subprocess.run
    monkeypatch.setattr(YAML, "load", lambda *arguments: parses.append(1) or load(*arguments))
    monkeypatch.setattr(
        subprocess, "run", lambda *arguments, **options: processes.append(1) or start(*arguments, **options)
    )
    counts = []

    for part in (points[:2], points[2:12]):
        assert all(planned.is_done for planned in plan_points(base, part))
        counts.append((len(parses), len(processes)))

    assert counts[1][0] - counts[0][0] <= 10
    assert counts[1][1] == 2 * counts[0][1]


@pytest.mark.parametrize("name", ["stages.py", "raw.dvc", "in/here.dvc", "../common/net.py", "../sets.dvc"])
def test_point_is_not_finished_if_an_input_has_changed(name, open_project, tmp_path):
    """The input may be in a folder that `dvc add` tracks, or above the project in a larger repository."""
    inputs = ["stages.py", "raw/train/a.csv", "in/here/b.csv", "../common/net.py", "../sets/c.csv"]
    project = open_project(tmp_path / "project")
    lock = {"stages": {"fit": {"cmd": "fit", "deps": [{"path": path} for path in inputs]}}}
    contents = {"dvc.lock": json.dumps(lock), "dvc.yaml": "", name: "before", "other.dvc": "before"}
    (project.folder / ".dvc").mkdir(parents=True)
    for path, text in contents.items():
        (project.folder / path).parent.mkdir(exist_ok=True)
        (project.folder / path).write_text(text)
    for arguments in (["init", "-q", ".."], ["add", "-A", ".."], ["commit", "-qm", "A project"]):
        project.ok("git", *arguments)
    commit = project.add_experiment("point")

    (project.folder / "other.dvc").write_text("after")
    assert is_result(freeze(project.folder), commit, {})
    (project.folder / name).write_text("after")
    assert not is_result(freeze(project.folder), commit, {})


@pytest.mark.parametrize("dep", ["conf/data.yaml", "conf"])
def test_point_is_finished_if_its_params_are_in_a_file_that_a_stage_reads(dep, open_project, tmp_path):
    """The code of the user reads the file of params, so it is in deps too, or a folder with it is."""
    project = open_project(tmp_path / "project")
    lock = {"stages": {"fit": {"cmd": "fit", "deps": [{"path": dep}]}}}
    for folder in (".dvc", "conf"):
        (project.folder / folder).mkdir(parents=True)
    contents = {"dvc.lock": json.dumps(lock), "dvc.yaml": "", "conf/data.yaml": "scale: 2", "conf/net.py": ""}
    for path, text in contents.items():
        (project.folder / path).write_text(text)
    for arguments in (["init", "-q", ".."], ["add", "-A", ".."], ["commit", "-qm", "A project"]):
        project.ok("git", *arguments)
    point = project.add_experiment("point")
    (project.folder / "conf/data.yaml").write_text("scale: 1")

    assert is_result(freeze(project.folder), point, {"conf/data.yaml": {"scale": 2}})
    assert not is_result(freeze(project.folder), point, {"conf/data.yaml": {"scale": 3}})
    (project.folder / "conf/net.py").write_text("after")
    is_same_code = is_result(freeze(project.folder), point, {"conf/data.yaml": {"scale": 2}})
    assert is_same_code == (dep != "conf")


def test_repeats_have_the_seeds_from_1_on_and_a_name_each():
    points = repeat(expand(["fit.batch_size=32,64"]), 2)

    names = [f"batch_size={size},repeat={seed}" for size in (32, 64) for seed in (1, 2)]
    assert short_point_names(points) == names
    assert points[1].set_params[1:] == ("params.yaml:++build_learner.seed=2", "params.yaml:++fit.seed=2")
    with pytest.raises(ParamsError, match=r"--repeat 2 sets .*Remove -S fit.seed"):
        repeat(expand(["fit.seed=1,2"]), 2)


def test_points_have_each_fold_and_a_name_each():
    points = fold(expand(["fit.batch_size=32,64"]), 2)

    names = [f"batch_size={size},fold={number}" for size in (32, 64) for number in (1, 2)]
    assert short_point_names(points) == names
    assert points[1].set_params[1:] == ("params.yaml:++load_data.folds=2", "params.yaml:++load_data.fold=2")
    assert fold(points, 1) == points
    with pytest.raises(ParamsError, match=r"--folds 2 sets .*Remove -S load_data.fold$"):
        fold(expand(["load_data.fold=1,2"]), 2)


def test_folds_of_the_params_as_they_are_need_no_other_param():
    points = fold([Point((), ())], 3)

    assert short_point_names(points) == ["fold=1", "fold=2", "fold=3"]
