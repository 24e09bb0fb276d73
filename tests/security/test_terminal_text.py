"""Text from files, from git and from other users does not control the terminal of any command."""

import ast
import csv
import hashlib
import json
import logging
import re
import struct
import subprocess
from pathlib import Path

import pytest
from command_line import walk_commands
from forked_commands import run_in_pipe, run_in_terminal
from long_tests import cases

from pipeline.comparison.runs import Comparison, MetricCurve, RunSummary
from pipeline.comparison.tables import comparison_values, csv_table, markdown_table, text_table
from stages.contracts.history import Direction
from stages.contracts.printing import CleanRecord
from stages.contracts.text import replace_unprintable, to_json

ROOT = Path(__file__).parents[2]
CONTROL = "\x1b]0;pwned\x07\x1b[2J\r\x7f\x9b31m\u202e\u2066\u2028"
"""Sets the title of a terminal, clears it, returns to the start of the line and reverses its direction."""
NAME = f"x{CONTROL}|=1+1"
LINES = f"{NAME}\n# heading"
REF = "x\u202e\x9b31m-big"
"""What git allows of this in the name of a reference."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""The sequences that set a color, which our own text has in a terminal."""
KEY = "0123456789abcdef"


def write(folder, content):
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def git(folder, *arguments):
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)
    return done.stdout.decode().strip()


def cached(folder, content, suffix=""):
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    write(folder, {f".dvc/cache/files/md5/{digest[:2]}/{digest[2:]}{suffix}": content})
    return digest + suffix


def as_yaml(text):
    """Return *text* as a scalar of YAML that is pure ASCII."""
    return json.dumps(text)


def lockfile(folder, value):
    curve = cached(folder, b"epoch\ttrain\tvalid\n1\t0.5\t0.25\n")
    plots = json.dumps([{"relpath": f"{NAME}.tsv", "md5": curve}]).encode()
    return f"""schema: '2.0'
stages:
  {as_yaml(NAME)}: {{cmd: x}}
  fit:
    cmd: x
    params:
      params.yaml:
        {as_yaml(LINES)}: {value}
        kind: {as_yaml(LINES + str(value))}
    outs:
    - {{path: artifacts/plots, md5: {as_yaml(cached(folder, plots, ".dir"))}, hash: md5}}
    - {{path: {as_yaml(NAME)}, md5: {as_yaml("0" * 32)}, hash: md5}}
"""


def safetensors(name):
    header = json.dumps(
        {
            "__metadata__": {NAME: LINES},
            name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        },
        ensure_ascii=False,
    ).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.0)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a project with control characters in every name that it can have."""
    folder = tmp_path_factory.mktemp("hostile") / "project"
    definition = (
        (ROOT / "dvc.yaml")
        .read_text()
        .replace("stages:\n", f"stages:\n  {as_yaml(NAME)}: {{cmd: x, outs: [{as_yaml(NAME)}]}}\n", 1)
    )
    owner = {"pid": 1, "host": LINES, "boot": "", "started": ""}
    beat = {**owner, "epoch": 1, "epochs": 2, "split": LINES, "step": 1, "steps": 2}
    write(
        folder,
        {
            ".dvc/config": f"[core]\n    remote = r\n['remote \"r\"']\n    url = /x/{REF}\n",
            ".dvc/.gitignore": "/cache\n/tmp\n",
            ".gitignore": "/.runs\n/artifacts\n",
            "dvc.yaml": definition,
            "params.yaml": (ROOT / "params.yaml").read_text(),
            "dvc.lock": lockfile(folder, 1),
            "artifacts/train/epoch-1/Loss.log": "1.0,1\n",
            f"artifacts/train/epoch-1/{NAME}.log": "1.0,1\n",
            f"{NAME}.safetensors": safetensors(NAME),
            "other.safetensors": safetensors("w"),
            f".runs/{KEY}/key.json": json.dumps({NAME: LINES}),
            f".runs/{KEY}/heartbeat.json": json.dumps(beat | {"time": "2026-01-01T00:00:00+00:00"}),
            f".runs/{KEY}.lock": json.dumps(owner),
        },
    )
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", LINES)
    head = git(folder, "rev-parse", "HEAD")
    write(folder, {"dvc.lock": lockfile(folder, 2)})
    git(folder, "commit", "-qam", LINES)
    git(folder, "update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{REF}", "HEAD")
    git(folder, "reset", "-q", "--hard", head)
    git(folder, "remote", "add", "origin", f"/x/{NAME}")
    return folder


COMMANDS = {
    "run": [("run", NAME), ("run", "-S", f"fit.{NAME}={NAME}")],
    "resume": [("resume", REF, "--epoch", "1", "--no-run"), ("resume", NAME, "--epoch", "1")],
    "stage": [("stage", NAME)],
    "check": [("check",)],
    "params": [("params",), ("params", "--json")],
    "status": [("status",), ("status", NAME)],
    "data": [("data", "--split", NAME)],
    "summary": [("summary",), ("summary", NAME)],
    "evaluate": [("evaluate", "--source", NAME), ("evaluate", "--model", f"{NAME}.mpk")],
    "predict": [("predict", NAME, "--out", f"{NAME}.csv"), ("predict", NAME, NAME, "--out", f"{NAME}.csv")],
    "publish": [("publish", NAME), ("publish", NAME, "--rev", NAME)],
    "lr-find": [("lr-find", "--output", f"{NAME}/x.tsv")],
    "compare": [
        ("compare",),
        ("compare", "--md"),
        ("compare", "--csv"),
        ("compare", "--json"),
        ("compare", REF, "workspace", "--metric", NAME),
        ("compare", "--sort", NAME),
        ("compare", NAME),
    ],
    "plot": [("plot", replace_unprintable(NAME).upper()), ("plot", NAME), ("plot", f"train/{NAME}")],
    "sweep": [
        ("sweep", "-S", f"{NAME}=1,2", "--dry-run"),
        ("sweep", "-S", f"fit.seed=1,{REF}", "--dry-run"),
    ],
    "serve": [("serve", NAME, "--name", NAME)],
    "doctor": [("doctor", "--timeout", "0.01"), ("doctor", "--deep", "--timeout", "0.01")],
    "init": [("init", NAME, "--template", NAME)],
    "versions": [("versions",)],
    "records show": [("records", "show", f"{NAME}.safetensors"), ("records", "show", f"{NAME}.mpk")],
    "records verify": [("records", "verify", f"{NAME}.safetensors", NAME)],
    "records convert": [("records", "convert", f"{NAME}.safetensors", f"{NAME}.xyz")],
    "records diff": [("records", "diff", f"{NAME}.safetensors", "other.safetensors")],
    "runs list": [("runs", "list"), ("runs", "list", "--json")],
    "runs show": [("runs", "show"), ("runs", "show", NAME)],
    "runs verify": [("runs", "verify")],
    "runs prune": [("runs", "prune", NAME)],
    "runs sync": [("runs", "sync")],
}
"""A command to its arguments: the names in the project, and names that the user has pasted."""
PRINTED = {"status", "compare", "records show"}
"""Commands that print names of the project in a pipe, one of each kind; ``make long`` tries the others."""


def find_controls(text):
    """Return the characters of *text* that control a terminal."""
    return {each for each in text.replace("\r\n", "\n") if not (each.isprintable() or each in "\n\t")}


def test_every_command_is_tried():
    leaves = {" ".join(words) for words, command in walk_commands() if not hasattr(command, "commands")}

    assert leaves == COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_names_do_not_control_a_terminal(hostile, command):
    for arguments in COMMANDS[command]:
        ended = run_in_terminal(hostile, *arguments, LEARNER_RENDERER="plain")

        assert not find_controls(COLOR.sub("", ended.text)), ended.text
        assert "Traceback" not in ended.text
        assert ended.code in (0, 1, 2)


@pytest.mark.parametrize("command", cases({each: (each,) for each in COMMANDS}, PRINTED))
def test_names_are_printable_in_a_pipe(hostile, command):
    for arguments in COMMANDS[command]:
        ended = run_in_pipe(hostile, *arguments)

        assert not find_controls(ended.text), ended.text
        assert "Traceback" not in ended.text
        assert ended.code in (0, 1, 2)


@pytest.mark.parametrize("command", ["compare", "compare --md", "runs list"])
def test_line_break_in_a_name_begins_no_line(hostile, command):
    lines = run_in_pipe(hostile, *command.split()).text.splitlines()

    assert not [line for line in lines if line.startswith("# heading")]


@pytest.mark.parametrize("command", ["status", "compare", "runs list", "init", "--help"])
def test_closed_pipe_ends_a_command_without_a_traceback(hostile, command):
    ended = run_in_pipe(hostile, *command.split(), reader=False)

    assert (ended.code, ended.text) == (1, "")


def test_encoding_without_a_character_replaces_it(hostile):
    ended = run_in_pipe(hostile, "compare", encoding="ascii")

    assert ended.code == 0, ended.text
    assert ended.text.isascii()


def build_runs(*params):
    curve = MetricCurve("valid", LINES, {1: -0.5}, Direction.LOWEST)
    runs = (RunSummary(LINES, None, {LINES: each}, {curve.name: curve}) for each in params)
    return Comparison(tuple(runs))


@pytest.mark.parametrize("write_table", [text_table, markdown_table, csv_table])
def test_table_has_names_only_as_printable_text(write_table):
    comparison = build_runs(NAME, LINES)
    plain = Comparison(tuple(RunSummary(f"run {number}", None, {"p": number}) for number in range(2)))

    text = write_table(comparison)

    assert not find_controls(text)
    assert len(text.splitlines()) == len(write_table(plain).splitlines())


def test_json_keeps_every_character_of_a_name():
    [first, _] = json.loads(to_json(comparison_values(build_runs(NAME, LINES))))["runs"]

    assert (first["name"], first["params"]) == (LINES, {LINES: NAME})


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\t", "＝"])
def test_csv_has_no_formula(sign):
    formula = f"{sign}HYPERLINK(A1)"
    rows = list(csv.reader(csv_table(build_runs(formula, "x")).splitlines()))

    assert [row[1] for row in rows[1:]] == [f"'{formula}", "x"]


def test_csv_keeps_numbers():
    params = (-1, -0.5, "-1e-3", "+2", [-1], "x")
    rows = list(csv.reader(csv_table(build_runs(*params)).splitlines()))

    assert [row[1] for row in rows[1:]] == ["-1", "-0.5", "-1e-3", "+2", "[-1]", "x"]
    assert {row[2] for row in rows[1:]} == {"-0.5"}


def test_pipes_in_a_name_make_no_cell_of_markdown():
    header, rule, *rows = markdown_table(build_runs(NAME, LINES)).splitlines()

    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in (header, rule, *rows)}
    assert len(columns) == 1


def test_log_record_of_dvc_keeps_no_control_characters():
    record = CleanRecord("dvc", logging.WARNING, "", 0, "%s in \x1b[36mblue\x1b[0m", (NAME,), None)

    assert record.getMessage() == f"{replace_unprintable(NAME)} in blue"


def find_writes(path):
    """Yield the calls in the module *path* that write to the standard streams without `print_text`."""
    text = path.read_text()
    tree = ast.parse(text if re.search("print|echo|std(out|err)", text) else "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            if call in ("print", "typer.echo") or re.search(r"std(out|err)\.write|print_exc", call):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {call}"


def test_only_one_module_writes_to_the_standard_streams():
    modules = [path for part in ("pipeline", "stages") for path in sorted((ROOT / part).rglob("*.py"))]
    others = {
        "pipeline/__main__.py": "no package of ours is imported yet",
        "pipeline/doctor/environment.py": "JSON for the parent process",
    }

    found = [call for path in modules if "templates" not in path.parts for call in find_writes(path)]

    assert {call.partition(":")[0] for call in found} == others.keys(), found
