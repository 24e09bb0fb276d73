"""A run whose images stay in files that DVC tracks."""

import json
import re

import numpy as np
from PIL import Image

SOURCE = "kind: digits\n    path: null"
INDEX = "kind: image_folder\n    path: raw\n  materialize: index"


def draw(folder):
    for number, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for index in range(12):
            pixels = np.full((28, 28, 3), 100 * number + index, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


def test_images_in_files_train_with_the_lines_that_check_prints(project):
    """A changed image makes load-data and fit stale; raw data is not in the key of the run, but code is."""
    draw(project.folder / "raw")
    project.edit("params.yaml", SOURCE, INDEX)
    checked = project.call("check")
    project.edit(
        "dvc.yaml",
        "      - stages/data/sources\n",
        "      - stages/data/sources\n      - raw\n",
    )
    project.edit(
        "dvc.yaml",
        "      - ${paths.data}\n      - stages",
        "      - ${paths.data}\n      - raw\n      - stages",
    )
    project.dvc("add", "raw").ok()

    project.call("run", "fit").ok()
    (project.folder / "raw/ant/3.png").write_bytes((project.folder / "raw/ant/4.png").read_bytes())
    project.dvc("add", "raw").ok()
    changed = json.loads(project.dvc("status", "--json").ok())

    assert re.findall(r"rerun (\S+); add to its deps:\n      - raw", checked.out) == ["load-data", "fit"]
    assert project.call("check").code == 0
    assert {"load-data", "fit"} <= changed.keys()
    keys = [json.loads(path.read_text()) for path in (project.folder / ".runs").glob("*/key.json")]
    code = [name for key in keys for name in key["code"]]
    assert not [name for name in code if name.startswith("raw")]
    assert "stages/models/cnn.py" in code
