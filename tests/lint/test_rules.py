"""Each rule of ``python tests/lint`` reports a violation with its file and line."""

import pytest
import typer
from import_rules import (
    MAY_IMPORT,
    PIPELINE_LAYERS,
    lockfile_has_the_code_of_the_tree,
    only_commands_import_inside_functions,
    only_one_module_calls_git,
    parts_import_only_lower_parts,
    paths_in_dvc_yaml_are_references,
    pipeline_packages_import_only_lower_layers,
    stages_import_neither_prefect_nor_dvc_nor_pipeline,
    stages_import_no_other_stage,
    tables_have_every_part_and_package,
    version_of_a_stage_is_a_literal_that_dvc_tracks,
)
from package_rules import (
    dependencies_are_imported_or_explained,
    imported_packages_are_in_pyproject,
    imported_packages_are_pinned,
)
from page_rules import (
    commands_are_documented,
    commands_of_pages_are_accepted,
    links_of_pages_resolve,
    make_repro_prints_the_model_and_the_next_command,
    messages_of_troubleshooting_exist,
    named_tests_exist,
    options_on_pages_exist,
    pages_are_in_the_navigation,
    parts_have_a_page_of_readable_length,
    programs_on_pages_import_names_that_exist,
    questions_are_answered,
    readme_is_short,
)
from prose_rules import (
    commands_have_a_purpose_in_one_sentence,
    docstrings_of_functions_open_with_a_verb,
    docstrings_rarely_have_unclear_verbs,
    names_of_functions_are_verbs,
    options_have_a_help_text,
    text_has_no_banned_phrase,
    variables_rarely_have_a_vague_name,
)
from rules import RULES
from source_tree import SourceTree
from tensor_rules import new_tensors_name_their_device

DVC_YAML = """\
vars:
  - paths: {model: artifacts/model.mpk.gz}
stages:
  fit: {outs: ["${paths.model}"], deps: [stages/models], params: [fit, {stages/fit.py: [VERSION]}]}
"""
TOML = '[project]\ndependencies = [\n    "numpy>=2",\n    "psutil>=6"%s\n]\n'
CONSOLE = "# Page\n\n```console\n$ %s\n```\n"


def command(purpose="Do this.", help_text="The number. Default: 1."):
    """Return the command line of a program with the commands ``learner go`` and ``learner stop``."""
    app = typer.Typer(help="Run a program.", add_completion=False)

    @app.command(help=purpose)
    def go(number: int = typer.Option(1, help=help_text)) -> None:
        pass

    @app.command(help="Stop the program.")
    def stop() -> None:
        pass

    return typer.main.get_command(app)


VIOLATIONS = [
    (
        docstrings_rarely_have_unclear_verbs,
        {"stages/a.py": '"""A module."""\n\n\nclass A:\n    """A case where it says more."""\n'},
        ("stages/a.py:4: 'where'", "stages/a.py:4: 'says'"),
    ),
    (
        docstrings_of_functions_open_with_a_verb,
        {"pipeline/a.py": 'class A:\n    async def f(self):\n        """What it is."""\n'},
        ("pipeline/a.py:2: f: the docstring opens with 'What'",),
    ),
    (
        names_of_functions_are_verbs,
        {"stages/a/b.py": "@property\ndef kept(): ...\ndef seed(): ...\ndef _kept_files(): ...\n"},
        ("stages/a/b.py:4: _kept_files is not a verb",),
    ),
    (
        variables_rarely_have_a_vague_name,
        {
            "pipeline/a.py": "names = 1\nfor each in names:\n    print(each)\n",
            "scripts/a.py": "found = 1\n",
        },
        ("pipeline/a.py:2: 'each' does not say what it holds",),
    ),
    (
        text_has_no_banned_phrase,
        {
            "pipeline/a.py": "#\n# repair it by hand\n",
            "a/README.md": "It goes on.\nThe state is cancel: go on\n",
        },
        ("pipeline/a.py:2: 'by hand': use manually", "a/README.md:1: 'goes on': use continue or resume"),
    ),
    (
        tables_have_every_part_and_package,
        {
            **{f"stages/{name}/__init__.py": "" for name in {*MAY_IMPORT, "extra"} - {"runs"}},
            **{f"pipeline/{name}/__init__.py": "" for name in {*PIPELINE_LAYERS, "extra"}},
        },
        (
            "stages/extra:1: either the folder or its entry",
            "stages/runs:1: either the folder or its entry",
            "pipeline/extra:1: either the folder or its entry",
            "pipeline/commands:1: either the folder or its entry",
        ),
    ),
    (
        parts_import_only_lower_parts,
        {
            "stages/records/a.py": "import os\n\nfrom stages import learner\n",
            "stages/records/b.pyi": "def f():\n    import stages.runs.key\n",
        },
        (
            "stages/records/a.py:3: records may not import stages.learner",
            "stages/records/b.pyi:2: records may not import stages.runs.key",
        ),
    ),
    (
        pipeline_packages_import_only_lower_layers,
        {
            **{f"pipeline/{name}/__init__.py": "" for name in ("engine", "flows")},
            "pipeline/engine/a.py": "from pipeline.flows import flow\nfrom . import b\n",
            "pipeline/error_reports.py": "import pipeline.cli\n",
            "pipeline/cli.py": "import pipeline.flows\n",
        },
        (
            "pipeline/engine/a.py:1: engine may not import pipeline.flows.flow",
            "pipeline/error_reports.py:1: error_reports.py may not import pipeline.cli",
        ),
    ),
    (
        only_one_module_calls_git,
        {
            "pipeline/project/git.py": 'run(["git", "log"])\n',
            "pipeline/a.py": 'known = ["git"]\nrun(\n    ["git", "log"]\n)\n',
        },
        ("pipeline/a.py:3: call git with a function in pipeline/project/git.py",),
    ),
    (
        stages_import_no_other_stage,
        {
            "stages/fit.py": "from stages import data, load_data\n",
            "stages/models/a.py": "from stages import fit\n",
        },
        ("stages/fit.py:1: a stage may not import stages.load_data",),
    ),
    (
        stages_import_neither_prefect_nor_dvc_nor_pipeline,
        {"stages/a/b.py": "try:\n    from dvc.repo import Repo\nexcept OSError:\n    import prefect\n"},
        (
            "stages/a/b.py:2: stages/ may not import dvc.repo.Repo",
            "stages/a/b.py:4: stages/ may not import prefect",
        ),
    ),
    (
        only_commands_import_inside_functions,
        {
            "stages/a.py": "class A:\n    def f(self):\n        if self:\n            import json\n",
            "pipeline/commands/a.py": "def f():\n    import json\n",
            "pipeline/cli.py": "def f():\n    import json\n",
        },
        ("stages/a.py:4: import json at the top of the module",),
    ),
    (
        version_of_a_stage_is_a_literal_that_dvc_tracks,
        {
            "dvc.yaml": DVC_YAML,
            "stages/fit.py": "#\nVERSION = str(3)\n",
            "stages/load_data.py": 'VERSION = "1"\n',
        },
        (
            "stages/fit.py:2: VERSION is not one literal string",
            "dvc.yaml:1: the params of load_data lack {'stages/load_data.py': ['VERSION']}",
            "dvc.yaml:1: the params of load_data lack load_data",
        ),
    ),
    (
        paths_in_dvc_yaml_are_references,
        {
            "dvc.yaml": DVC_YAML.replace("${paths.model}", "stages/model.bin").replace(
                "stages/models", "data/raw"
            )
        },
        (
            "dvc.yaml:1: fit: write stages/model.bin in vars, and a reference to it here",
            "dvc.yaml:1: fit: write data/raw in vars, and a reference to it here",
        ),
    ),
    (
        lockfile_has_the_code_of_the_tree,
        {
            "dvc.lock": "stages: {fit: {deps: [{path: stages/models, md5: 0}, {path: data/raw, md5: 1}]}}",
            "stages/models/a.py": "",
        },
        ("dvc.lock:1: fit: stages/models was edited: run `dvc repro`, commit dvc.lock",),
    ),
    (
        imported_packages_are_in_pyproject,
        {
            "pyproject.toml": TOML % "",
            "stages/a.py": "import os\n\nimport numpy.linalg\nfrom yaml import load\n",
        },
        ("stages/a.py:4: no dependency in pyproject.toml has the package yaml",),
    ),
    (
        imported_packages_are_pinned,
        {
            "pyproject.toml": TOML % "",
            "constraints.txt": "numpy==2.0\npsutil>=6\n",
            "stages/a.py": "import numpy\nimport psutil\n",
        },
        ("stages/a.py:2: psutil has no version in constraints.txt",),
    ),
    (
        dependencies_are_imported_or_explained,
        {"pyproject.toml": TOML % ',\n    "isal",  # reason', "stages/a.py": "import numpy\n"},
        ("pyproject.toml:4: no module imports psutil: give the reason",),
    ),
    (
        commands_of_pages_are_accepted,
        {
            "README.md": CONSOLE % "learner go --number 2 && learner go --numbers 2",
            "a.md": CONSOLE % "python tests/b.py --x  # a comment",
            "e.md": CONSOLE % "python c.py" + "```python\n# c.py\n```\n",
            "b.md": CONSOLE % "make tests",
            "c.md": CONSOLE % "learner halt",
            "d.md": CONSOLE % "conda install",
            "Makefile": "all:\ntest:\n",
        },
        (
            "README.md:4: learner go --numbers 2: No such option: --numbers",
            "a.md:4: python tests/b.py --x: there is no such file",
            "b.md:4: make tests: the Makefile has no such target",
            "c.md:4: learner halt: No such command 'halt'",
            "d.md:4: conda install: unknown program",
        ),
    ),
    (
        programs_on_pages_import_names_that_exist,
        {
            "a.md": "```python\n\nfrom stages.a import LIMIT, A, B, C\nfrom stages import a, b\n```\n",
            "b.md": "\n```python\nimport stages.b as\n```\n",
            "stages/a/__init__.py": "LIMIT: int = 3\n",
            "stages/a/__init__.pyi": "from .a import A as A\nclass B: ...\n",
        },
        (
            "a.md:3: there is no stages.a.C",
            "a.md:4: there is no stages.b",
            "b.md:3: the program cannot be parsed: invalid syntax",
        ),
    ),
    (
        commands_are_documented,
        {"README.md": "`learner go`\n"},
        ("README.md:1: no page names `learner stop`",),
    ),
    (
        options_on_pages_exist,
        {"a.md": "`--number 3`, `--quick`\nand `--slow`\n", "benchmarks/a.py": 'add_argument("--quick")\n'},
        ("a.md:2: no program has --slow",),
    ),
    (
        links_of_pages_resolve,
        {
            "a/b.md": "[b](../c)\n[d](d.md#e) [f](#f) [g](x://g)\n[h](h.png) [i](../i.md#the-end)\n# `F`\n",
            "i.md": "[j](a/b.md#f-1) [k](#the-end) [l](#start)\n# The `end`\n```sh\n# Start\n```\n# F\n",
            "c/x.py": "",
            "a/h.png": "",
        },
        (
            "a/b.md:2: d.md does not exist",
            "i.md:1: a/b.md has no heading #f-1",
            "i.md:1: i.md has no heading #start",
        ),
    ),
    (
        pages_are_in_the_navigation,
        {
            "mkdocs.yml": "exclude_docs: |\n  /b.md\nnav:\n  - A: a.md\n  - B: [{C: c.md}, api/data.md]\n",
            **{f"{name}.md": "" for name in "abd"},
            **{f"stages/{name}/__init__.pyi": "" for name in ("data", "data/sources")},
        },
        (
            "mkdocs.yml:1: d.md is neither in nav nor in exclude_docs",
            "mkdocs.yml:1: c.md does not exist",
            "mkdocs.yml:1: api/data.sources.md, the API of a part, is not in nav",
        ),
    ),
    (
        questions_are_answered,
        {
            "README.md": "[a](a/README.md) [b](b)\n",
            "a/README.md": "# A\n[c](../c.md)\n## Use\nBuy it.\n### Then\nSell it.\n## End\nNothing.\n",
            "b/README.md": "# B\nThis.\n",
            "c.md": "# C\n[d](d.md)\nThat.\n",
            "d.md": "# D\nNever.\n",
            "tests/lint/questions.toml": "".join(
                f'[[question]]\ntext = "{text}"\npage = "{page}"\nanchor = "{anchor}"\nanswer = "{answer}"\n'
                for text, page, anchor, answer in (
                    ("What?", "a/README.md", "use", "Sell"),
                    ("Which?", "b/README.md", "b", "This"),
                    ("Where?", "c.md", "c", "That"),
                    ("When?", "d.md", "d", "Never"),
                    ("Why?", "a/README.md", "use", "Nothing"),
                    ("How?", "a/README.md", "used", "Buy"),
                )
            ),
        },
        (
            "tests/lint/questions.toml:17: d.md is more than two links",
            "tests/lint/questions.toml:22: a/README.md#use does not contain 'Nothing'",
            "tests/lint/questions.toml:27: a/README.md has no heading #used",
        ),
    ),
    (
        messages_of_troubleshooting_exist,
        {
            "pipeline/doctor/troubleshooting.md": "# A\n## `would not rerun it`\n## `was not printed`\n",
            "pipeline/a.py": 'print(\n    f"an edit would "\n    "not rerun it"\n)\n',
        },
        ("pipeline/doctor/troubleshooting.md:3: no message has 'was not printed'",),
    ),
    (
        named_tests_exist,
        {
            "a.md": "`tests/a.py::test_b`\n[c](../tests/a.py), `tests/a.py::test_c`\n",
            "Makefile": "all:\n\tpytest tests/b.py\n",
            "tests/a.py": "def test_b():\n    ...\n",
        },
        ("a.md:2: there is no tests/a.py::test_c", "Makefile:2: there is no tests/b.py"),
    ),
    (
        parts_have_a_page_of_readable_length,
        {
            **{f"stages/{name}/__init__.py": "" for name in "abc"},
            "stages/a/README.md": "text\n" * 91,
            "stages/b/README.md": "text\n" * 90,
        },
        (
            "stages/a/README.md:91: 91 lines; write 20 to 90",
            "stages/c/README.md:1: 0 lines; write 20 to 90",
        ),
    ),
    (
        new_tensors_name_their_device,
        {
            "stages/a.py": 'torch.zeros(3, device="cpu")\ntorch.stack([])\ntorch.tensor(3)\n',
            "stages/models/b.py": "torch.zeros(3)\n",
        },
        ("stages/a.py:3: torch.tensor has no device",),
    ),
    (readme_is_short, {"README.md": "text\n" * 201}, ("README.md:201: 201 lines; write at most 200",)),
    *(
        (
            make_repro_prints_the_model_and_the_next_command,
            {"dvc.yaml": DVC_YAML, "Makefile": f'repro: .venv\n\tdvc repro\n\t@echo "{text}"\n\ntest:\n'},
            ("Makefile:1: repro does not end with the path of the model and the next command",),
        )
        for text in (
            "artifacts/model.bin 'learner go'",
            "artifacts/model.mpk.gz 'learner halt'",
            "'learner go'",
        )
    ),
]


@pytest.mark.parametrize(
    ("rule", "files", "expected"), VIOLATIONS, ids=lambda each: getattr(each, "__name__", "")
)
def test_rule_reports_each_violation_and_nothing_else(rule, files, expected):
    found = [f"{path}:{line}: {message}" for path, line, message in rule(SourceTree(files, command()))]

    assert len(found) == len(expected), found
    assert [text for text in expected if not any(line.startswith(text) for line in found)] == []


@pytest.mark.parametrize(
    ("rule", "program", "message"),
    [
        (commands_have_a_purpose_in_one_sentence, command("Does this."), "the help of `learner go` does not"),
        (commands_have_a_purpose_in_one_sentence, command("How it works."), "the help of `learner go` does"),
        (commands_have_a_purpose_in_one_sentence, command("do this"), "the help of `learner go` does not"),
        (options_have_a_help_text, command(help_text=""), "the help of number of `learner go` is not a"),
        (options_have_a_help_text, command(help_text="a number."), "the help of number of `learner go` is"),
    ],
)
def test_rule_reports_a_command_without_help(rule, program, message):
    [finding] = rule(SourceTree({}, program))

    assert finding.message.startswith(message)
    assert not list(rule(SourceTree({}, command())))


def test_every_rule_has_a_test():
    tested = {rule for rule, *_ in VIOLATIONS}

    assert set(RULES) == tested | {commands_have_a_purpose_in_one_sentence, options_have_a_help_text}
