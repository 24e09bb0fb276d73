"""Commands of a project whose dataset is read when its samples are needed."""

import pytest

MODULE = """\
import numpy as np


class Waves:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.sin(index + np.arange(8.0)), index % 2


class Stream:
    def __iter__(self):
        return map(Waves().__getitem__, range(40))


def build_stream():
    return Stream()
"""


def use(project, factory):
    (project.folder / "waves.py").write_text(MODULE)
    source = f'kind: dataset\n    factory: "waves:{factory}"\n    lazy: true'
    project.edit("params.yaml", "kind: digits\n    path: null", source)
    project.use_model("mlp")
    project.add_deps()


def read_deps(project):
    return (project.folder / "dvc.yaml").read_text().partition("\n  fit:")[2].partition("\n  save-model:")[0]


@pytest.fixture
def lazy(project):
    use(project, "Waves")
    return project


def test_fit_depends_on_the_dataset_and_runs_only_what_params_name(lazy):
    assert "- waves.py" in read_deps(lazy)

    assert "epoch 1/1" in lazy.call("run", "fit", "-S", "fit.num_epochs=1").ok()

    (lazy.folder / "data/prepared/dataset.json").write_text(
        (lazy.folder / "data/prepared/dataset.json").read_text().replace("waves:Waves", "os:getcwd")
    )
    refused = lazy.call("data")
    assert refused.code != 0
    assert "names os:getcwd, whose code is run only if load_data in params.yaml names it too" in refused.err


def test_fit_does_not_depend_on_an_iterable_dataset(project):
    use(project, "Stream")

    assert "- waves.py" not in read_deps(project)


def test_fit_does_not_depend_on_a_dataset_whose_samples_load_data_has_stored(project):
    """A function may return a dataset of either kind; dataset.json names it if fit reads the samples."""
    (project.folder / "data/prepared").mkdir(parents=True)
    (project.folder / "data/prepared/dataset.json").write_text('{"counts": {"train": 40}}')

    use(project, "build_stream")

    assert "- waves.py" not in read_deps(project)


@pytest.mark.long  # test_fit_does_not_depend_on_an_iterable_dataset
def test_run_on_an_iterable_dataset_reads_no_code_in_fit(project):
    use(project, "Stream")

    assert "epoch 2/2" in project.call("run").ok()
    assert "waves.py" not in project.call("check", "--no-import").ok()
