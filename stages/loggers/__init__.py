"""Loggers of a run: log files, tables, TensorBoard curves, `experiment.log`, and the files of `dvc plots`.

They do not change a number of the run. See README.md in this folder.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
