from .inputs import InputBlock as InputBlock
from .inputs import read_inputs as read_inputs
from .prediction_files import write_predictions as write_predictions
from .trained_model import Predictions as Predictions
from .trained_model import Preprocessing as Preprocessing
from .trained_model import TrainedModel as TrainedModel
from .trained_model import load_model as load_model
from .trained_model import read_config as read_config
