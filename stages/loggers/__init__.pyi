from .curves import write_curves as write_curves
from .curves import write_metrics as write_metrics
from .file import FileMetricLogger as FileMetricLogger
from .file import read_history as read_history
