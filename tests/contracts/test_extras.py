"""The public packages in an environment without the extras of learner-pipeline."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.contracts.errors import PluginError
from stages.contracts.plugins import load_extra

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for part in ("stages", "pipeline")
    for path in (ROOT / part).rglob("__init__.py")
)
WITHOUT_EXTRAS = """
import sys
EXTRAS = {
    "torchmetrics", "tensorboard", "vl_convert", "dask", "distributed", "prefect_dask",
    "ray", "prefect_ray", "dvc_s3", "s3fs", "dvc_ssh", "sshfs",
    "optuna", "cmaes",
}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""
USES = {
    "TorchMetric(None)": ("TorchMetric needs torchmetrics", "metrics"),
    "build_metric(Use(kind='bleu'))": ("metric 'bleu' needs torchmetrics", "metrics"),
    "build_metric(Use(kind='rouge_l'))": ("metric 'rouge_l' needs torchmetrics", "metrics"),
    "build_metric(Use(kind='dice', num_classes=3))": ("metric 'dice' needs torchmetrics", "metrics"),
    "build_metric(Use(kind='psnr'))": ("metric 'psnr' needs torchmetrics", "metrics"),
    "build_metric(Use(kind='ssim'))": ("metric 'ssim' needs torchmetrics", "metrics"),
    "build_metric(Use(kind='ms_ssim'))": ("metric 'ms_ssim' needs torchmetrics", "metrics"),
    "TensorBoardMetricLogger('here')": ("TensorBoardMetricLogger needs tensorboard", "tensorboard"),
}
EACH_USE = f"""
import json
from stages.contracts.config import Use
messages = {{}}
for use in {list(USES)}:
    try:
        eval(use)
    except Exception as error:
        messages[use] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(messages))
"""


def test_public_packages_can_be_imported_without_any_extra_and_report_its_absence_when_used():
    """An error has the command that installs the extra."""
    imports = "".join(f"from {package} import *\n" for package in PACKAGES)
    program = f"{WITHOUT_EXTRAS}{imports}CpuUse\n{EACH_USE}"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    messages = json.loads(done.stdout)
    assert set(messages) == set(USES)
    for use, (words, extra) in USES.items():
        assert messages[use].startswith(f"PluginError: {words}, which cannot be imported: No module named")
        assert messages[use].endswith(f"Run `pip install 'learner-pipeline[{extra}]'`")


def test_installed_extra_is_loaded():
    assert load_extra("json", "metrics", "this test").dumps(1) == "1"


def test_broken_extra_reports_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_extra.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PluginError, match=r"needs broken_extra.*No module named 'no_such_dependency'"):
        load_extra("broken_extra", "metrics", "this test")
