"""A renderer that interrupts a run."""

from stages.renderers import NoRenderer


class StopAfter(NoRenderer):
    """Interrupts the run after a number of steps, of both splits."""

    def __init__(self, interrupter, steps):
        super().__init__()
        self.interrupter, self.left = interrupter, steps

    def step(self, progress):
        self.left -= 1
        if self.left == 0:
            self.interrupter.stop("the test")
