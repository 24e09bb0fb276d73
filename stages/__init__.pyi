from .inference import load_model as load_model
