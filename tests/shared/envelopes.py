"""The envelopes that commands print with ``--json``, and their schemas, closed to find what they lack."""

import json

from jsonschema import Draft202012Validator
from schema_files import FOLDER


def close(schema):
    """Return *schema* without any property that it does not name, so that a test finds those."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    return closed | ({"additionalProperties": False} if "properties" in schema else {})


ENVELOPE, EVENT = (
    Draft202012Validator(close(json.loads((FOLDER / name).read_text())))
    for name in ("envelopes.json", "events.json")
)


def call(project, command):
    """Return the envelope of *command*, after a comparison with the schema and with the exit code."""
    done = project.call(*command.split(), "--json")
    envelope = json.loads(done.out)
    ENVELOPE.validate(envelope)
    assert command.startswith(envelope["command"])
    assert envelope["ok"] == (done.code == 0) == (envelope["error"] is None), envelope
    return envelope
