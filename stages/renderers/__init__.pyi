from .choice import default_renderer as default_renderer
from .live import LiveRenderer as LiveRenderer
from .plain import PlainRenderer as PlainRenderer
from .plain import epoch_line as epoch_line
