"""Commands of a project whose dataset is read when its samples are needed."""

import pytest

MODULE = """\
import numpy as np


class Waves:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.sin(index + np.arange(8.0)), index % 2
"""


@pytest.fixture
def lazy(project):
    (project.folder / "waves.py").write_text(MODULE)
    source = 'kind: dataset\n    factory: "waves:Waves"\n    lazy: true'
    project.edit("params.yaml", "kind: digits\n    path: null", source)
    project.use_model("mlp")
    project.add_deps()
    return project


def test_fit_depends_on_the_dataset_and_runs_only_what_params_name(lazy):
    entry = (lazy.folder / "dvc.yaml").read_text().partition("\n  fit:")[2].partition("\n  save-model:")[0]
    assert "- waves.py" in entry

    assert "epoch 1/1" in lazy.call("run", "fit", "-S", "fit.num_epochs=1").ok()

    (lazy.folder / "data/prepared/dataset.json").write_text(
        (lazy.folder / "data/prepared/dataset.json").read_text().replace("waves:Waves", "os:getcwd")
    )
    refused = lazy.call("data")
    assert refused.code != 0
    assert "names os:getcwd, whose code is run only if load_data in params.yaml names it too" in refused.err
