from .checkpointer import Checkpoint as Checkpoint
from .checkpointer import FileCheckpointer as FileCheckpointer
from .retention import AnyOf as AnyOf
from .retention import Keep as Keep
from .retention import KeepBest as KeepBest
from .retention import KeepLast as KeepLast
from .retention import Retention as Retention
from .retention import default_retention as default_retention
