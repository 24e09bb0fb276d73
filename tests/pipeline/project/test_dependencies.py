"""A stage that reads what its deps in dvc.yaml lack is refused, with the lines to add."""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.engine.stage_run import GuardedInterrupter
from pipeline.project.dependencies import check_deps, find_missing_deps, fix_deps, guard_deps
from pipeline.project.params import Params
from stages.contracts.errors import StageError

DEFINITION = """
vars:
  - paths: {dataset: data/dataset.json}
stages:
  load-data:
    cmd: learner stage load-data  # the first
    deps:
      - my_source.py
      - tables
    params: [load_data]
    outs: [data]
"""
PARAMS = Params.model_validate({"load_data": {"source": {"kind": "my_source:load"}}})
BESIDE = "my_lab/__init__.py my_lab/deep/w.bin my_lab/weights.py"
WEIGHTS = """
import os
PLACE = os.path.join(os.path.dirname(__file__), "deep", "w.bin")
def read():
    os.system(f"cat {PLACE} > /dev/null")
"""
READS = {
    "import at the top": ("import my_helper", "", "my_helper.py"),
    "two imports away": ("import my_chain", "", "my_chain.py my_helper.py"),
    "import in a function": ("", "import my_helper", "my_helper.py"),
    "computed import": ("", "importlib.import_module('my_' + 'helper')", "my_helper.py"),
    "package with code": ("", "import my_lab.part", "my_lab/__init__.py my_lab/part.py"),
    "relative import": ("", "import my_plain.near", "my_plain/far.py my_plain/near.py"),
    "file at the top": ("TEXT = open('notes.csv').read()", "", "notes.csv"),
    "file in a function": ("", "open('notes.csv').read()", "notes.csv"),
    "path": ("", "Path('notes.csv').read_bytes()", "notes.csv"),
    "descriptor": ("", "os.close(os.open('notes.csv', os.O_RDONLY))", "notes.csv"),
    "file of another module": ("", "import my_reader; my_reader.read()", "my_reader.py notes.csv"),
    "file outside of the project": ("", "open('../outside/data.csv').read()", "OUTSIDE"),
    "absolute path in the project": ("", "open(os.path.abspath('notes.csv')).read()", "notes.csv"),
    "pretrained file": (
        "",
        "import safetensors; safetensors.safe_open('w.safetensors', 'np')",
        "w.safetensors",
    ),
    "file of a program": ("", "os.system('cat notes.csv > /dev/null')", "notes.csv"),
    "spawned process": ("", "spawn('notes.csv')", "notes.csv"),
    "native file beside the module": ("", "import my_lab.weights as w; w.read()", BESIDE),
    "module that is run as a program": ("", "runpy.run_path('my_helper.py')", "my_helper.py"),
    "module that is read as data": ("", "exec(Path('my_helper.py').read_text())", "my_helper.py"),
    "file that .dvcignore excludes": ("", "open('tables/a.skip').read()", "tables/a.skip"),
    "link to a folder in deps": ("", "open('tables/outside/data.csv').read()", "tables/outside/data.csv"),
    "compiled module": ("", "load_compiled('_queue', 'compi' + 'led.so')", "compiled.so"),
    "listed folder": ("", "[path.read_text() for path in Path('few').glob('*')]", "few"),
    "many files": ("", "[open(path).read() for path in Path('many').iterdir()]", "many"),
    "worker": ("", "fork(lambda: open('notes.csv').read())", "notes.csv"),
    "import in a worker": ("", "fork(lambda: importlib.import_module('my_helper'))", "my_helper.py"),
    "thread": ("", "in_thread(lambda: open('notes.csv').read())", "notes.csv"),
}
COVERED = {
    "file in a folder of deps": "open('tables/a.csv').read()",
    "deps by an absolute path": "open(os.path.abspath('tables/a.csv')).read()",
    "deps behind a link": "open('linked/a.csv').read()",
    "output of the stage": "open('data/x').read()",
    "file that it has written": "open('new.txt', 'w').write('x'); open('new.txt').read()",
    "file that a program has written": "tick(); os.system('echo > new.txt'); open('new.txt').read()",
    "file that does not exist": "contextlib.suppress(OSError).__exit__(None, None, None)",
    "hidden file": "open('.settings').read()",
    "file of the machine": "open('/etc/passwd').read()",
    "installed package": "import this_is_installed",
    "package without code": "import my_empty",
    "metadata of an editable installation": "open('../outside/tool.egg-info/entry_points.txt').read()",
    "metadata of the project itself": "open('own.egg-info/entry_points.txt').read()",
    "folder": "os.listdir('many')",
    "name of a file that is not opened": "len('notes.csv')",
    "params of this project": "os.system('cat params.yaml > /dev/null')",
}
SOURCE = """
import contextlib, importlib.util, multiprocessing, os, runpy, threading
from pathlib import Path
{top}
def fork(function):
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(0)
    os.waitpid(pid, 0)
def spawn(name):
    process = multiprocessing.get_context("spawn").Process(target=open, args=(name,))
    process.start()
    process.join()
def load_compiled(name, path):
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
def stamp():
    Path(".stamp").write_text("")
    return os.stat(".stamp").st_ctime_ns
def tick():  # until the clock of the file system has a later time
    first = stamp()
    while stamp() == first:
        pass
def load():
    {body}
"""
FILES = {
    "dvc.yaml": DEFINITION,
    "my_helper.py": "x = 1",
    "my_chain.py": "import my_helper",
    "my_lab/__init__.py": "x = 1",
    "my_lab/part.py": "x = 1",
    "my_lab/weights.py": WEIGHTS,
    "my_lab/deep/w.bin": "1",
    "few/a": "1",
    "few/b": "1",
    "params.yaml": "{}",
    "my_plain/near.py": "from . import far",
    "my_plain/far.py": "x = 1",
    "my_reader.py": "def read():\n    open('notes.csv').read()",
    "my_empty/__init__.py": '"""Nothing."""',
    "notes.csv": "1",
    "tables/a.csv": "1",
    "tables/a.skip": "1",
    ".dvcignore": "*.skip",
    "data/x": "1",
    ".settings": "1",
    ".venv/lib/python3.11/site-packages/this_is_installed.py": "x = 1",
    "../outside/data.csv": "1",
    "../outside/tool.egg-info/entry_points.txt": "",
    "own.egg-info/entry_points.txt": "",
    **{f"many/{number}": "1" for number in range(9)},
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Change to a project, and forget its modules after the test."""
    folder = tmp_path / "project"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "linked").symlink_to("tables")
    (folder / "tables/outside").symlink_to(tmp_path / "outside")
    save_file({"weight": np.zeros(1)}, folder / "w.safetensors")
    shutil.copy(importlib.import_module("_queue").__file__, folder / "compiled.so")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(folder / ".venv/lib/python3.11/site-packages"))
    yield folder
    for name in [name for name in sys.modules if name.startswith(("my_", "this_is"))]:
        del sys.modules[name]


def body():
    """Run the source, as the stage does."""
    importlib.import_module("my_source").load()


def run(params=PARAMS, stage="load-data", function=body):
    with guard_deps(stage, params, function):
        function()


def write_source(top="", function="pass"):
    Path("my_source.py").write_text(SOURCE.format(top=top, body=function or "pass"))


@pytest.mark.parametrize(("top", "function", "missing"), READS.values(), ids=READS)
def test_stage_that_reads_what_its_deps_lack_is_refused_until_they_are_added(top, function, missing, project):
    write_source(top, function)
    names = sorted(missing.replace("OUTSIDE", str(project.parent / "outside/data.csv")).split())

    with pytest.raises(StageError, match="load-data reads files that its deps in dvc.yaml lack") as refused:
        run()

    assert str(refused.value).split(":\n      - ")[1].split("\n      - ") == names
    with pytest.raises(StageError):
        check_deps(PARAMS, ["load-data"])  # before the next run, although it may read nothing again
    assert len(find_missing_deps(PARAMS)) >= len(names)
    assert len(list(fix_deps(PARAMS))) >= len(names)
    assert "cmd: learner stage load-data  # the first" in Path("dvc.yaml").read_text()
    check_deps(PARAMS, ["load-data"])
    run()


def test_only_files_that_exist_or_that_a_stage_writes_are_added_to_deps(project):
    """DVC runs no stage of which a dependency does not exist, also after the path in params is corrected."""
    Path("dvc.yaml").write_text(f"{DEFINITION}  make:\n    cmd: x\n    outs: [made.npz]\n")
    npz = {name: {"kind": "npz", "path": f"{name}.npz"} for name in ("misspelled", "made")}

    added = {
        name: list(fix_deps(Params.model_validate({"load_data": {"source": npz[name]}}))) for name in npz
    }

    assert added == {"misspelled": [], "made": ["dvc.yaml: added made.npz to the deps of load-data"]}


@pytest.mark.parametrize("function", COVERED.values(), ids=COVERED)
def test_stage_that_reads_what_deps_cover_or_nobody_edits_is_recorded(function, project):
    write_source(function=function)

    run()

    assert find_missing_deps(PARAMS) == []


def test_module_that_an_earlier_stage_has_loaded_counts_for_those_that_use_it(project):
    """One process runs several stages, and imports a module once."""
    entry = DEFINITION.partition("stages:")[2]
    complete = DEFINITION.replace("- tables", "- my_model.py\n      - my_helper.py\n      - notes.csv")
    other = entry.replace("load-data", "build-learner").replace("my_source", "my_model")
    Path("dvc.yaml").write_text(complete + other)
    helper = "import importlib\nimportlib.import_module('my_' + 'helper')\n"
    Path("my_model.py").write_text(f"{helper}x = open('notes.csv').read()")
    write_source("import my_model")
    run()
    model = Params.model_validate({"build_learner": {"model": {"kind": "my_model:x"}}})

    with pytest.raises(
        StageError, match=r"build-learner reads files .*:\n      - my_helper.py\n      - notes.csv$"
    ):
        run(model, "build-learner", lambda: importlib.import_module("my_model"))


def test_module_that_two_stages_of_a_process_import_in_a_function_counts_for_both(project):
    """Python opens it for the first of them only."""
    entry = DEFINITION.partition("stages:")[2]
    both = DEFINITION.replace("- tables", "- my_helper.py")
    Path("dvc.yaml").write_text(both + entry.replace("load-data", "build-learner").replace("source", "model"))
    Path("my_model.py").write_text("def x():\n    import my_helper")
    write_source(function="import my_helper")
    run()
    model = Params.model_validate({"build_learner": {"model": {"kind": "my_model:x"}}})

    with pytest.raises(StageError, match=r"build-learner reads files .*:\n      - my_helper.py$"):
        run(model, "build-learner", lambda: importlib.import_module("my_model").x())


def test_folder_is_missing_if_only_its_present_files_are_deps(project):
    """The stage would read another file in it too."""
    Path("dvc.yaml").write_text(DEFINITION.replace("- tables", "- few/a\n      - few/b"))
    write_source(function="[path.read_text() for path in Path('few').iterdir()]")

    with pytest.raises(StageError, match=r"load-data reads files .*:\n      - few$"):
        run()


def test_module_of_a_logger_is_not_needed_in_deps(project):
    """Loggers change no number: another logger does not rerun the stage either."""
    Path("my_logger.py").write_text("import my_helper\nx = open('notes.csv').read()")
    Path("dvc.yaml").write_text(DEFINITION.replace("load-data", "fit"))
    params = Params.model_validate({"fit": {"loggers": ["my_logger:Log"]}})

    run(params, "fit", lambda: importlib.import_module("my_logger"))

    assert find_missing_deps(params) == []


def test_file_that_another_stage_reads_is_not_missing(project):
    definition = DEFINITION.replace("load-data", "build-learner").partition("stages:")[2]
    Path("dvc.yaml").write_text(
        DEFINITION.replace("- tables", "- my_reader.py\n      - notes.csv") + definition
    )
    write_source("import my_reader", "my_reader.read()")
    run()

    run(Params(), "build-learner", lambda: None)


def test_many_modules_are_missing_one_by_one(project):
    """Their folder would rerun the stage for the code of another one."""
    for number in range(9):
        Path(f"my_lab/part{number}.py").write_text("x = 1")
    write_source("".join(f"import my_lab.part{number}\n" for number in range(9)))

    assert sum("my_lab/part" in line for line in find_missing_deps(PARAMS)) == 9


def test_training_ends_after_the_step_that_reads_a_missing_dependency(project):
    """A training would otherwise run for hours before its results are refused."""
    write_source(function="open('notes.csv').read()")

    def train():
        interrupter = GuardedInterrupter(guard)
        assert not interrupter.should_stop()
        body()
        interrupter.should_stop()

    with (
        pytest.raises(StageError, match=r"load-data reads files .*:\n      - notes.csv$"),
        guard_deps("load-data", PARAMS, train) as guard,
    ):
        train()


def test_checkpoint_among_the_outputs_is_left_to_the_message_of_its_stage(project):
    Path("dvc.yaml").write_text(f"{DEFINITION}  build-learner: {{cmd: x}}")
    params = Params.model_validate(
        {"build_learner": {"checkpoint": {"path": "data", "epoch": 1}}, "fit": {"num_epochs": 2}}
    )

    check_deps(params, ["build-learner"])


def test_note_of_a_read_ends_with_the_code_that_read_it(project):
    write_source(function="open('notes.csv').read()")
    with pytest.raises(StageError):
        run()
    assert "load-data" in json.loads(Path(".runs/missing-deps.json").read_text())

    write_source(function="pass")
    os.utime("my_source.py", (1, 1))
    del sys.modules["my_source"]
    run()


def test_data_and_pretrained_files_in_params_are_dependencies(project):
    source = {"kind": "npz", "path": str(project.parent / "outside/data.csv")}
    model = {"kind": "my_source:Net", "weights": "notes.csv"}
    params = Params.model_validate({"load_data": {"source": source}, "build_learner": {"model": model}})

    with pytest.raises(StageError, match=r"outside/data.csv"):
        check_deps(params, ["load-data"])

    definition = DEFINITION.replace("load-data", "build-learner").replace(
        "params: [", "params: [build_learner, "
    )
    Path("dvc.yaml").write_text(definition)
    write_source()
    assert [line.rpartition("- ")[2] for line in find_missing_deps(params)] == ["notes.csv"]


def test_linked_folders_in_a_folder_of_data_are_dependencies_of_their_own(project):
    """DVC leaves them out of the hash of the folder, while load-data reads what is in them."""
    names = [f"tables/{number}" for number in range(9)]
    Path("tables/outside").unlink()
    for name in names:
        Path(name).symlink_to(project.parent / "outside")
    for name in ("loop", ".hidden"):
        Path("tables", name).symlink_to("../tables")
    params = Params.model_validate({"load_data": {"source": {"kind": "image_folder", "path": "tables"}}})

    with pytest.raises(StageError, match=r"load-data reads files .*:(\n      - tables/\d){9}$"):
        check_deps(params, ["load-data"])
    added = list(fix_deps(params))

    assert added == [f"dvc.yaml: added {name} to the deps of load-data" for name in names]
    check_deps(params, ["load-data"])
