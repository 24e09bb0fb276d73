from .blueprint import Blueprint as Blueprint
from .builder import LearnerBuilder as LearnerBuilder
from .devices import find_device as find_device
from .devices import set_num_threads as set_num_threads
from .learner import Learner as Learner
from .state import best_epoch as best_epoch
from .state import checkpoint_recorder as checkpoint_recorder
from .summary import summary_text as summary_text
