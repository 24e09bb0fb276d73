"""A configuration as a file."""

from pathlib import Path

from pydantic import BaseModel

from stages.contracts.text import to_json
from stages.system.files import write_text


def save_config(config: BaseModel, path: Path) -> None:
    """Write *config* to *path* as JSON, atomically, in the form in which Burn's ``Config::save`` writes it.

    Fields are in the order of their declaration, with no line break after the last. A section that is
    selected by its ``kind`` contains it as a key, as in params.yaml.
    """
    write_text(path, to_json(config.model_dump(mode="json", by_alias=True)))
