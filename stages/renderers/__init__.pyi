from .live import LiveRenderer as LiveRenderer
from .plain import LogRenderer as LogRenderer
from .plain import NoRenderer as NoRenderer
from .plain import PlainRenderer as PlainRenderer
from .plain import default_renderer as default_renderer
from .plain import format_epoch as format_epoch
