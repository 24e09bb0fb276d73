from .recorder import CompactRecorder as CompactRecorder
from .recorder import DefaultRecorder as DefaultRecorder
from .recorder import FullPrecision as FullPrecision
from .recorder import HalfPrecision as HalfPrecision
from .recorder import NamedMpkGzFileRecorder as NamedMpkGzFileRecorder
from .recorder import Recorder as Recorder
from .recorder import Tree as Tree
from .recorder import named as named
