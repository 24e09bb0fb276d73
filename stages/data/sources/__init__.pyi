from .built_in import digits as digits
from .built_in import idx as idx
from .built_in import load_source as load_source
from .built_in import npy as npy
from .built_in import npz as npz
