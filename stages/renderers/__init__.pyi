from .choice import default_renderer as default_renderer
from .live import LiveRenderer as LiveRenderer
from .log import LogRenderer as LogRenderer
from .plain import PlainRenderer as PlainRenderer
from .plain import epoch_line as epoch_line
from .silent import NoRenderer as NoRenderer
