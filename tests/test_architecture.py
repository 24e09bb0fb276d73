"""The architecture: the tables of permitted imports, and the entries that dvc.yaml must contain."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
STAGES = ("create_artifact_dir", "load_data", "build_learner", "fit", "save_model")

LEAVES = {"records", "metrics", "models", "optim", "loggers", "renderers", "devices"}
MAY_IMPORT = {
    "contracts": set(),
    **{part: {"contracts"} for part in LEAVES},
    "runs": {"contracts", "checkpoints"},  # checkpoints own the names of the files in a store
    "data": {"contracts", "records", "devices"},
    "checkpoints": {"contracts", "records"},
    "distributed": {"contracts", "records", "devices", "optim"},
    "learner": {
        "contracts",
        "records",
        "checkpoints",
        "metrics",
        "models",
        "optim",
        "devices",
        "distributed",
    },
    "params": LEAVES
    | {"contracts", "data", "checkpoints", "distributed", "learner"},  # the parts that params configure
}

PIPELINE_LAYERS = {
    "revisions": set(),
    "engine": {"revisions"},
    "scaffold": set(),
    "comparison": {"engine", "revisions"},
    "flows": {"engine", "revisions"},
    "sweep": {"engine", "revisions", "comparison", "flows"},
    "doctor": {"engine", "revisions", "flows"},
}
ENTRY_POINTS = {"cli", "__main__"}


def imports(path):
    """Yield the full name of every module that *path* imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = list(path.relative_to(ROOT).parent.parts)[: None if node.level < 2 else 1 - node.level]
            base = [*package, *filter(None, [node.module])] if node.level else [node.module]
            yield from (".".join([*base, alias.name]) for alias in node.names)


def sources(folder):
    found = [path for kind in ("*.py", "*.pyi") for path in sorted((ROOT / folder).rglob(kind))]
    assert found, folder
    return found


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_part_imports_only_lower_parts(part):
    for path in sources(f"stages/{part}"):
        used = {name.split(".")[1] for name in imports(path) if name.startswith("stages.")}

        assert used <= MAY_IMPORT[part] | {part}, path


def test_every_part_is_in_the_import_table():
    folders = {path.name for path in (ROOT / "stages").iterdir() if (path / "__init__.py").exists()}

    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("package", sorted(PIPELINE_LAYERS))
def test_pipeline_package_imports_only_lower_layers(package):
    for path in sources(f"pipeline/{package}"):
        if "templates" in path.parts:
            continue  # modules of a user's project, which may import all
        used = pipeline_packages(path)

        assert used <= PIPELINE_LAYERS[package] | {package}, path


def test_modules_beside_the_packages_import_no_package():
    for path in sorted((ROOT / "pipeline").glob("*.py")):
        assert path.stem in ENTRY_POINTS or not pipeline_packages(path), path


def test_only_one_module_of_the_pipeline_calls_git():
    """A command is a list of several strings; a list with one element is something else."""
    for path in sources("pipeline"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.List)
            and len(node.elts) > 1
            and getattr(node.elts[0], "value", "") == "git"
        ]

        assert not calls or path == ROOT / "pipeline/git.py", path


def test_every_pipeline_package_has_a_layer():
    folders = {path.name for path in (ROOT / "pipeline").iterdir() if (path / "__init__.py").exists()}

    assert folders == set(PIPELINE_LAYERS) | {"commands"}


def pipeline_packages(path):
    """Return the packages of pipeline/ that *path* imports from; the entry points count as packages."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("pipeline.")}
    return {name for name in names if name in ENTRY_POINTS or (ROOT / "pipeline" / name).is_dir()}


def test_stage_imports_no_other_stage():
    for stage in STAGES:
        used = {
            name.split(".")[1] for name in imports(ROOT / f"stages/{stage}.py") if name.startswith("stages.")
        }

        assert not used & set(STAGES), stage


def test_stages_import_neither_prefect_nor_dvc_nor_pipeline():
    for path in sources("stages"):
        assert not {name.split(".")[0] for name in imports(path)} & {"prefect", "dvc", "pipeline"}, path


def test_only_commands_import_inside_functions():
    """Elsewhere a late import would hide a dependency; commands import late so that others start fast."""
    for path in sources("stages") + sources("pipeline"):
        if path.name in ("cli.py", "__main__.py") or path.parent.name == "commands":
            continue
        functions = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        late = [n for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)]

        assert not late, path


@pytest.mark.parametrize("stage", STAGES)
def test_version_of_a_stage_is_a_literal_that_dvc_tracks(stage):
    tree = ast.parse((ROOT / f"stages/{stage}.py").read_text())
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VERSION"
    ]
    assert len(values) == 1
    assert isinstance(ast.literal_eval(values[0]), str)

    definition = dvc_yaml()["stages"][stage.replace("_", "-")]
    assert {f"stages/{stage}.py": ["VERSION"]} in definition["params"]
    assert (stage if stage != "create_artifact_dir" else {"params.yaml": None}) in definition["params"]


def test_every_path_in_dvc_yaml_is_a_reference():
    for stage in dvc_yaml()["stages"].values():
        for path in stage["outs"] + [dep for dep in stage.get("deps", []) if not dep.startswith("stages")]:
            assert path.startswith("${paths."), path


@pytest.mark.parametrize(
    "module", ["stages", "stages.contracts", "stages.learner", "pipeline.params", "stages.fit"]
)
def test_importing_does_not_load_torch_prefect_or_dvc(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'prefect', 'dvc'}} & set(sys.modules)))"

    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [["--help"], ["check"], ["status"], ["compare"]])
def test_light_command_loads_neither_torch_nor_prefect(command, project):
    loaded = project.run(sys.executable, "-X", "importtime", "-m", "pipeline", *command).imported

    assert "pipeline.cli" in loaded
    assert not loaded & {"torch", "prefect"}


def test_first_stage_does_not_load_torch(project):
    log = project.run(sys.executable, "-X", "importtime", "-m", "pipeline", "stage", "create-artifact-dir")

    assert log.code == 0, log.err
    assert "stages.create_artifact_dir" in log.imported
    assert "torch" not in log.imported


def test_run_on_one_device_does_not_load_the_code_of_sharded_parameters(tmp_path):
    """It would take as long to import as half of torch, because it imports sympy."""
    program = f"""if True:
        import sys
        import torch
        from stages.data import DataLoaderBuilder, NormalizeBatcher, TensorDataset
        from stages.learner import LearnerBuilder
        from stages.models import Mlp
        from stages.optim import Adam
        from stages.records import BinFileRecorder
        from stages.renderers import NoRenderer
        data = TensorDataset(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64))
        loader = DataLoaderBuilder(NormalizeBatcher(0.0, 1.0)).batch_size(2).build(data)
        builder = LearnerBuilder({str(tmp_path)!r}).num_epochs(1).with_file_checkpointer(BinFileRecorder())
        builder.renderer(NoRenderer()).build(Mlp((2,), 2), Adam(), 0.1).fit(loader, loader)
        print(sorted({{"torch.distributed.fsdp", "torch.distributed.tensor", "sympy"}} & set(sys.modules)))
    """

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert found.stdout.splitlines()[-1:] == ["[]"], found.stdout + found.stderr


def test_help_does_not_load_the_config_classes(project):
    """Importing the config classes and pydantic would take most of the time of `learner --help`."""
    loaded = project.run(sys.executable, "-X", "importtime", "-m", "pipeline", "--help").imported

    assert "pipeline.commands.runs" in loaded
    ours = {name for name in loaded if name.startswith(("pipeline", "stages"))}
    assert not {name for name in ours if name.endswith(("config", "params"))} | loaded & {"pydantic"}


def dvc_yaml():
    return YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())
