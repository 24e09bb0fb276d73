"""Write the JSON Schemas of what commands print for programs, from the annotations of the commands."""

import json
from pathlib import Path
from typing import Literal, get_type_hints

from command_line import walk_commands
from pydantic import TypeAdapter

from pipeline.commands.results import EVENTS, Envelope

FOLDER = Path(__file__).parents[2] / "pipeline/commands/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLES = {
    "envelopes.json": "What a command of learner prints with --json",
    "events.json": "A line that learner run --events prints",
}


def result_types():
    """Return the type of the result of each command, by its words."""
    return {
        " ".join(words): get_type_hints(command.callback)["return"]
        for words, command in walk_commands()
        if not hasattr(command, "commands")
    }


def build_schemas():
    """Return the content of each file by its name."""
    results = result_types()
    envelopes = [Envelope[Literal[name], result] for name, result in results.items()]
    failure = Envelope[str, type(None)]  # of arguments that name no command
    ends = [Envelope[Literal[name], results[name]] for name in ("run", "resume")]
    kinds = [(name, kind) for name, kind in EVENTS.items() if name != "end"]
    return {
        "envelopes.json": _schema("envelopes.json", [(None, kind) for kind in [*envelopes, failure]]),
        "events.json": _schema("events.json", [*kinds, *(("end", kind) for kind in ends)]),
    }


def _schema(name, kinds):
    """Return a schema that accepts each of *kinds*; one with a name has it as the field ``event``."""
    adapters = [(number, "serialization", TypeAdapter(kind)) for number, (_, kind) in enumerate(kinds)]
    references, shared = TypeAdapter.json_schemas(adapters)
    definitions = shared["$defs"]
    for (number, _), reference in references.items():
        event = kinds[number][0]
        if event is not None:
            content = definitions[reference["$ref"].rpartition("/")[2]]
            content["properties"] = {"event": {"const": event}, **content["properties"]}
            content["required"] = ["event", *content["required"]]
    head = {"$schema": DIALECT, "title": TITLES[name], "anyOf": list(references.values())}
    return head | {"$defs": definitions}


def to_text(schema):
    """Return *schema* as the text of its file."""
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, schema in build_schemas().items():
        (FOLDER / file).write_text(to_text(schema))
