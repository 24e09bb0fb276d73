"""The rules of the architecture: the tables of permitted imports, dvc.yaml and dvc.lock."""

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator

from source_tree import Finding, Import, SourceTree, line_of

from pipeline.project.snapshot import write_list

STAGES = ("create_artifact_dir", "load_data", "build_learner", "fit", "save_model")

BASE = {"contracts", "system"}
LEAVES = {"records", "metrics", "models", "optim", "loggers", "renderers", "devices"}
MAY_IMPORT = {
    "contracts": set(),
    "system": {"contracts"},
    **dict.fromkeys(LEAVES, BASE),
    "runs": BASE | {"records"},
    "data": BASE | {"records", "devices"},
    "distributed": BASE | {"records", "devices", "optim"},
    "learner": BASE | {"records", "runs", "metrics", "models", "optim", "devices", "distributed"},
    "inference": BASE | LEAVES | {"data", "learner", "params", "runs"},
    "params": BASE | LEAVES | {"data", "runs", "distributed"},  # the parts that params configure
}

FROM_PARAMS = "stages/learner/from_params.py"
"""The module of ``learner`` that builds what params describe, and so imports three parts more."""

PIPELINE_LAYERS = {
    "project": set(),
    "engine": {"project"},
    "scaffold": {"project"},
    "comparison": {"engine", "project"},
    "flows": {"engine", "project", "comparison"},
    "sweep": {"engine", "project", "comparison", "flows"},
    "doctor": {"engine", "project", "flows"},
}
ENTRY_POINTS = {"cli", "__main__"}
GIT_MODULE = "pipeline/project/git.py"
USER_MODULES = "pipeline/scaffold/templates/"
"""Modules of a user's project, which may import all."""


def tables_have_every_part_and_package(tree: SourceTree) -> Iterator[Finding]:
    """The tables of imports have exactly the parts of stages/ and the packages of pipeline/."""
    for folder, table in (("stages", {*MAY_IMPORT}), ("pipeline", {*PIPELINE_LAYERS, "commands"})):
        for name in sorted(table ^ tree.packages(folder)):
            yield Finding(f"{folder}/{name}", 1, "either the folder or its entry in the table is missing")


def parts_import_only_lower_parts(tree: SourceTree) -> Iterator[Finding]:
    """Each part of stages/ imports only the parts that the table permits."""
    for part, permitted in MAY_IMPORT.items():
        for module in tree.modules(f"stages/{part}", stubs=True):
            further = {"params", "data", "loggers"} if module.path == FROM_PARAMS else set()
            for each in _imports_below(module.imports, "stages"):
                if each.name.split(".")[1] not in permitted | further | {part}:
                    yield Finding(module.path, each.line, f"{part} may not import {each.name}")


def pipeline_packages_import_only_lower_layers(tree: SourceTree) -> Iterator[Finding]:
    """Each package of pipeline/ imports the layers below it; modules beside the packages import none."""
    upper = tree.packages("pipeline") | ENTRY_POINTS
    for module in tree.modules("pipeline", stubs=True):
        folder, _, rest = module.path.removeprefix("pipeline/").partition("/")
        is_free = folder == "commands" or module.path.startswith(USER_MODULES)
        if is_free or (not rest and folder.removesuffix(".py") in ENTRY_POINTS):
            continue
        permitted = PIPELINE_LAYERS.get(folder, set()) | {folder}
        for each in _imports_below(module.imports, "pipeline"):
            if each.name.split(".")[1] in upper - permitted:
                yield Finding(module.path, each.line, f"{folder} may not import {each.name}")


def only_one_module_calls_git(tree: SourceTree) -> Iterator[Finding]:
    """Commands of git, which are lists of several strings, are in pipeline/project/git.py."""
    for module in tree.modules("pipeline"):
        if module.path != GIT_MODULE:
            for match in re.finditer(r"""\[\s*["']git["']\s*,""", module.text):
                line = line_of(module.text, match.start())
                yield Finding(module.path, line, f"call git with a function in {GIT_MODULE}")


def stages_import_no_other_stage(tree: SourceTree) -> Iterator[Finding]:
    """A stage file imports parts, and no other stage file."""
    for module in tree.modules("stages"):
        if module.path.removeprefix("stages/").removesuffix(".py") in STAGES:
            for each in _imports_below(module.imports, "stages"):
                if each.name.split(".")[1] in STAGES:
                    yield Finding(module.path, each.line, f"a stage may not import {each.name}")


def stages_import_neither_prefect_nor_dvc_nor_pipeline(tree: SourceTree) -> Iterator[Finding]:
    """The library works without DVC and Prefect."""
    for module in tree.modules("stages", stubs=True):
        for each in module.imports:
            if each.name.split(".")[0] in {"prefect", "dvc", "pipeline"}:
                yield Finding(module.path, each.line, f"stages/ may not import {each.name}")


def only_commands_import_inside_functions(tree: SourceTree) -> Iterator[Finding]:
    """Elsewhere a late import would hide a dependency; commands import late so that others start fast."""
    for module in tree.modules("stages", "pipeline", stubs=True):
        if module.path.startswith("pipeline/commands/") or module.path.endswith(("/cli.py", "/__main__.py")):
            continue
        for each in module.imports:
            if each.is_late:
                yield Finding(module.path, each.line, f"import {each.name} at the top of the module")


def version_of_a_stage_is_a_literal_that_dvc_tracks(tree: SourceTree) -> Iterator[Finding]:
    """Each stage file has one literal VERSION, which dvc.yaml names with the section of its params."""
    for module in tree.modules("stages"):
        stage = module.path.removeprefix("stages/").removesuffix(".py")
        if stage not in STAGES:
            continue
        versions = [
            node
            for node in module.tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VERSION"
        ]
        if len(versions) != 1 or not isinstance(getattr(versions[0].value, "value", None), str):
            yield Finding(
                module.path, versions[0].lineno if versions else 1, "VERSION is not one literal string"
            )
        params = tree.dvc_yaml["stages"].get(stage.replace("_", "-"), {}).get("params", [])
        section = stage if stage != "create_artifact_dir" else {"params.yaml": None}
        for entry in ({module.path: ["VERSION"]}, section):
            if entry not in params:
                yield Finding("dvc.yaml", 1, f"the params of {stage} lack {entry}")


def paths_in_dvc_yaml_are_references(tree: SourceTree) -> Iterator[Finding]:
    """Each path of an output or a dependency is written once, in vars."""
    for name, stage in tree.dvc_yaml["stages"].items():
        deps = [each for each in stage.get("deps", []) if not each.startswith("stages")]
        outs = [next(iter(out)) if isinstance(out, dict) else out for out in stage["outs"]]
        for path in [*outs, *deps]:
            if not path.startswith("${paths."):
                yield Finding("dvc.yaml", 1, f"{name}: write {path} in vars, and a reference to it here")


def lockfile_has_the_code_of_the_tree(tree: SourceTree) -> Iterator[Finding]:
    """dvc.lock has the hash of each folder of code that a stage depends on."""
    for name, stage in tree.lock["stages"].items():
        for dep in stage.get("deps", []):
            if dep["path"].startswith("stages/") and dep["md5"] != _hash_folder(tree, dep["path"]):
                yield Finding(
                    "dvc.lock", 1, f"{name}: {dep['path']} was edited: run `dvc repro`, commit dvc.lock"
                )


def _hash_folder(tree: SourceTree, folder: str) -> str:
    """Return the hash of *folder* in dvc.lock."""
    prefix = f"{folder}/"
    files = {name.removeprefix(prefix): text for name, text in tree.files.items() if name.startswith(prefix)}
    return f"{_md5(write_list({name: _md5(text) for name, text in files.items()}))}.dir"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _imports_below(imports: Iterable[Import], package: str) -> Iterator[Import]:
    return (each for each in imports if each.name.startswith(f"{package}."))


RULES = (
    tables_have_every_part_and_package,
    parts_import_only_lower_parts,
    pipeline_packages_import_only_lower_layers,
    only_one_module_calls_git,
    stages_import_no_other_stage,
    stages_import_neither_prefect_nor_dvc_nor_pipeline,
    only_commands_import_inside_functions,
    version_of_a_stage_is_a_literal_that_dvc_tracks,
    paths_in_dvc_yaml_are_references,
    lockfile_has_the_code_of_the_tree,
)
