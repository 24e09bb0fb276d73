"""YAML is read as DVC reads it."""

import pytest
from dvc.exceptions import DvcException
from dvc.utils.serialize import parse_yaml as read_with_dvc
from ruamel.yaml.error import YAMLError

from pipeline.project.yaml_files import load_yaml, parse_yaml
from stages.contracts.errors import ParamsError

SCALAR_TEXT = r"""
    yes no on off y n Yes TRUE true tRue True False null Null nULL ~ nan inf .inf -.Inf +.INF .NaN .nan
    010 0o10 0o8 0x1F 0xg 0b101 0b111 089 08 -08 00 0 +1 -0 -1 1_000 1__0 _1 1_ 1:30 1:30:00 1.5:3
    1e-4 1e4 1.e4 .5e3 .5e+3 1.5e+3 12e03 1e400 -1e400 +.5 -.5 0. . .. ... --- -x ~x <x =x = < <<
    2001-01-01 2001-12-14t21:59:43.10-05:00 2001-12-14T21:59:43Z 2001-12-14_21:59:43
    12345678901234567890123 123456789012345678 1234567890123456789 -123456789012345678
    d41d8cd98f00b204e9800998ecf8427e d751713988987e9331980363e24189ce.dir 0b1be0 1be0
    1e100000000000000000000000000000 00000000000000000000000000000000 0b010101010101010101010101010101
    '1' "1" '' "\u263a" "null" 'it''s' !!str_1 !!int_'3' !_12 !own_x !!float_1 a_b a#b -_- é 😀
"""
SCALARS = SCALAR_TEXT.split() + [each.replace("_", " ") for each in SCALAR_TEXT.split() if "_" in each]
DOCUMENTS = [
    "",
    "\n",
    "# only a comment\n",
    "---\n",
    "---\na: 1\n",
    "a: 1\n...\n",
    "a: 1\n---\nb: 2\n",
    "\ufeffa: 1\n",
    "%YAML 1.1\n---\na: yes\nb: 010\n",
    "%YAML 1.2\n---\na: yes\n",
    "--- |\n text\n  more\n",
    "a: >-\n x\n y\n",
    "a: &x [1]\nb: *x\n",
    "a: &x 1\nb: *x\n",
    "a: &x {b: *x}\n",
    "a: *x\n",
    "a: &x {c: 1}\nb: {<<: *x, d: 2}\n",
    "<<: {a: 1}\n",
    "'<<': {a: 1}\n",
    "a: 1\na: 2\n",
    "1: a\n1.0: b\n",
    "true: a\nTRUE: b\n",
    "? [1, 2]\n: 3\n",
    "? {a: 1}\n: 3\n",
    "? |\n x\n: 3\n",
    "a:\n\tb: 1\n",
    "a: [\n",
    "a: {b: [1, {c: }]}\n",
    "{a, b: 2}\n",
    "[a: 1]\n",
    "a: one\n  two\n\n  three\n",
    "a: 1\n  2\n",
    "null: 1\n~: 2\n",
    "a: b: c\n",
    "a: @x\n",
    "a: `x`\n",
    "a: \x07\n",
    "!!omap [a: 1]\n",
    "!!set {a, b}\n",
    "!!binary aGk=\n",
    "a: !!python/name:os.system\n",
    "- - - 1\n  - 2\n",
    "x\n",
    "a: 2026-13-01\n",
    "a: 0b_\n",
    "a: " + "1" * 5000 + "\n",
]


def read_or_error(read, *arguments):
    """Return the representation of what *read* returns, which shows types and NaN, or None for an error."""
    try:
        value = read(*arguments) or {}
    except (YAMLError, DvcException, ValueError, RecursionError):
        return None
    return f"a set of {sorted(value)}" if isinstance(value, set) else repr(value)


@pytest.mark.parametrize("text", DOCUMENTS)
def test_document_is_read_as_dvc_reads_it(text):
    assert read_or_error(load_yaml, text) == read_or_error(read_with_dvc, text, "params.yaml")


@pytest.mark.parametrize("text", SCALARS)
def test_scalar_is_read_as_dvc_reads_it(text):
    document = f"a: {text}\n"

    assert read_or_error(load_yaml, document) == read_or_error(read_with_dvc, document, "params.yaml")


def test_document_that_is_nested_too_deeply_is_refused():
    """DVC reads it in Python 3.13."""
    with pytest.raises(ParamsError, match="^params.yaml is not valid YAML: it is nested too deeply"):
        parse_yaml("a: " + "[" * 2000 + "]" * 2000 + "\n", "params.yaml")


@pytest.mark.parametrize("value", ["2026-13-01", "0b_"])
def test_value_of_a_wrong_type_is_refused_with_the_file(value):
    with pytest.raises(ParamsError, match="^params.yaml is not valid YAML: "):
        parse_yaml(f"date: {value}\n", "params.yaml")


@pytest.mark.parametrize("prefix", ["0x", "0o", "0b", ""])
def test_integer_with_thousands_of_digits_is_an_error(prefix):
    with pytest.raises(ParamsError, match="digits"):
        parse_yaml(f"a: {prefix}{'1' * 5_000}\n", "params.yaml")
