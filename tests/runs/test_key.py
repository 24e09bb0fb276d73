"""The key of a run."""

import pytest

from stages.runs import differences, run_key

ENTRIES = {
    "version": "3",
    "params": {"batch_size": 32, "learning_rate": 1e-3, "metrics": ["loss", {"kind": "top_k", "k": 2}]},
    "inputs": {"learner": "a" * 64, "data": "b" * 64},
}


def test_key_is_the_same_in_every_process_and_release():
    """A key that is computed differently would orphan all existing stores."""
    assert run_key({"version": "3", "params": {"a": [1, 2.5, None, True, "é"]}}) == "885a551c46c884df"


def test_key_does_not_depend_on_order_of_entries_or_kind_of_sequence():
    turned = dict(reversed(ENTRIES.items())) | {
        "params": dict(reversed(ENTRIES["params"].items())) | {"metrics": tuple(ENTRIES["params"]["metrics"])}
    }

    assert run_key(turned) == run_key(ENTRIES)
    assert differences(turned, ENTRIES) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "4"},
        {"params": {**ENTRIES["params"], "batch_size": 32.0}},
        {"params": {**ENTRIES["params"], "metrics": []}},
        {"params": {**ENTRIES["params"], "more": None}},
        {"inputs": {"learner": "b" * 64, "data": "a" * 64}},
    ],
)
def test_key_depends_on_every_entry(changed):
    other = {**ENTRIES, **changed}

    assert run_key(other) != run_key(ENTRIES)
    assert differences(ENTRIES, other)


def test_differences_list_each_entry_with_both_values():
    other = {
        "version": "4",
        "params": {
            "batch_size": 64,
            "learning_rate": 1e-3,
            "metrics": ["loss", {"kind": "top_k", "k": 3}, 1],
        },
        "inputs": {"learner": "a" * 64, "data": "c" * 64},
        "seed": None,
    }

    assert differences(ENTRIES, other) == [
        f"inputs.data: {'b' * 12}… → {'c' * 12}…",
        "params.batch_size: 32 → 64",
        "params.metrics[1].k: 2 → 3",
        "params.metrics[2]: absent → 1",
        "seed: absent → null",
        'version: "3" → "4"',
    ]


def test_differences_include_a_section_that_became_a_value():
    assert differences({"a": {"b": 1}}, {"a": {}}) == ["a: absent → {}", "a.b: 1 → absent"]
