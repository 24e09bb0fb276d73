"""What the live view shows of all it could, and how keys change that."""

from dataclasses import dataclass, replace
from enum import StrEnum

from stages.renderers.keyboard import Key


class View(StrEnum):
    """Which points of a metric are plotted."""

    FULL = "Full history"
    RECENT = "Recent"
    EPOCHS = "Epochs"


VIEWS = tuple(View)


@dataclass(frozen=True)
class Selection:
    """What was chosen by key."""

    metric: int = 0
    """The place of the plotted metric among those that have curves."""
    view: View = View.FULL
    asking: bool = False
    """Whether the question how to quit is open."""

    def after(self, key: Key, metrics: int) -> "Selection":
        """The selection that *key* makes of this one, where *metrics* have curves."""
        match key:
            case Key.LEFT | Key.RIGHT:
                step = 1 if key is Key.RIGHT else -1
                return replace(self, metric=(self.metric + step) % max(metrics, 1))
            case Key.UP | Key.DOWN:
                step = 1 if key is Key.DOWN else -1
                return replace(self, view=VIEWS[(VIEWS.index(self.view) + step) % len(VIEWS)])
            case Key.QUIT:
                return replace(self, asking=True)
            case Key.STOP | Key.KILL | Key.CANCEL:
                return replace(self, asking=False)
            case Key.SUSPEND:
                return self
