"""The live view in a real terminal: tmux sends keys to it and returns the content of its screen."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from long_tests import long
from rich.cells import cell_len
from waiting import wait_until

ROOT = Path(__file__).parents[2]
PANES = {"Metrics", "Status", "Controls", "Progress"}

pytestmark = pytest.mark.skipif(
    not shutil.which("tmux"), reason="tmux, which emulates the terminal, is not installed"
)


class Terminal:
    """A shell in an emulated terminal of *columns* by *rows*, with its own tmux server at *socket*."""

    def __init__(self, socket, columns, rows):
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        shell = (
            f"cd {shlex.quote(str(ROOT))} && exec env PS1='shell> ' PYTHONPATH=. bash --norc --noprofile -i"
        )
        size = ["-x", str(columns), "-y", str(rows)]
        self.tmux("new-session", "-d", *size, shell)

    def tmux(self, *arguments):
        environment = {
            name: value for name, value in os.environ.items() if name not in {"TMUX", "LEARNER_RENDERER"}
        }
        command = [*self._tmux, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return result.stdout

    def type(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)

    def command(self, line):
        self.tmux("send-keys", "-l", line)
        self.type("Enter")

    def show(self, *options, redirection=""):
        script = Path(__file__).with_name("simulated_run.py")
        self.command(f"{shlex.join([sys.executable, str(script), *options])} {redirection}")

    @property
    def lines(self):
        """The lines on the screen, including their trailing spaces."""
        return self.tmux("capture-pane", "-p", "-N").split("\n")[:-1]

    @property
    def scrollback(self):
        """The text on the screen and that which has scrolled out of it."""
        return self.tmux("capture-pane", "-p", "-S", "-")

    def state(self, name):
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def wait(self, *texts, until=lambda lines: True):
        """Wait until all of *texts* are on the screen and ``until(lines)`` is true; return the lines."""

        def shown():
            lines = self.lines
            return lines if all(text in "\n".join(lines) for text in texts) and until(lines) else None

        return wait_until(shown, lambda: f"no {texts}, or not the state:\n" + "\n".join(self.lines))

    def assert_intact(self):
        """Check that the shell echoes input, with a cursor and line wrapping, on the normal screen."""
        self.wait("shell> ")
        self.command("echo modes: $(stty -a | grep -ow -e '[-]*icanon' -e '[-]*echo' -e '[-]*icrnl')")

        self.wait("echo modes: $(", "modes: icrnl icanon echo")
        assert (self.state("cursor_flag"), self.state("alternate_on")) == ("1", "0")
        assert self.state("wrap_flag") == "1"


@pytest.fixture
def terminal(tmp_path):
    opened = []

    def make(columns=80, rows=24):
        opened.append(Terminal(tmp_path / "tmux", columns, rows))
        return opened[-1]

    yield make
    for each in opened:
        each.tmux("kill-server")


def fill(columns, rows):
    """Return a check that lines fill the screen, and that each starts and ends with the border of a pane."""

    def check(lines):
        borders = all(line[:1] in "╭│╰" and line[-1:] in "╮│╯" for line in lines)
        return borders and [cell_len(line) for line in lines] == [columns] * rows

    return check


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), long(160, 48)])
def test_panes_fill_the_terminal(columns, rows, terminal):
    screen = terminal(columns, rows)
    screen.show()

    lines = screen.wait(*PANES, "Accuracy · Full history", "valid epoch", "Mode Training")

    assert fill(columns, rows)(lines)
    assert (screen.state("cursor_flag"), screen.state("alternate_on")) == ("0", "1")
    for text in (
        "/1000",
        "Iteration ",
        "Items ",
        "train epoch 7.25 Gb - batch 7.25 Gb",
        "━━ valid",
    ):
        assert text in "\n".join(lines), text


def test_arrow_keys_change_metric_and_view(terminal):
    screen = terminal()
    screen.show()
    screen.wait("Accuracy · Full history")

    for key, title in (
        ("Right", "Loss · Full history"),
        ("Right", "Iteration Speed · Full history"),
        ("Right", "Accuracy · Full history"),  # text metrics have no curve
        ("Left", "Iteration Speed · Full history"),
        ("Down", "Iteration Speed · Recent"),
        ("Down", "Iteration Speed · Epochs"),
        ("Up", "Iteration Speed · Recent"),
    ):
        screen.type(key)
        screen.wait(title)


def test_view_of_epochs_has_the_curve_of_telemetry(terminal):
    """The history, from which the curves of other metrics are drawn, does not contain it."""
    screen = terminal()
    screen.show("--batches", "4")

    screen.type("Left", "Up")

    screen.wait("Iteration Speed · Epochs", "┤")


def test_view_is_redrawn_after_a_resize(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    for columns, rows in ((100, 30), (50, 14), (72, 18)):
        screen.tmux("resize-window", "-x", str(columns), "-y", str(rows))
        screen.wait("Progress", until=fill(columns, rows))


def test_quit_dialog_can_be_canceled(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    screen.type("q")
    screen.wait("Quit?", "stop after this step", "kill at once")
    screen.type("c")
    screen.wait(*PANES, until=lambda lines: "Quit?" not in "\n".join(lines))

    assert screen.state("alternate_on") == "1"


def test_stop_key_ends_the_program_and_prints_its_lines(terminal):
    screen = terminal()
    screen.show()
    screen.wait(until=lambda lines: re.search(r"Epoch ([2-9]|\d\d+)/1000", "\n".join(lines)))

    screen.type("q", "s")

    screen.wait("stopped: the key to stop was pressed")
    assert "epoch    1/1000 | train: Accuracy" in screen.scrollback
    screen.assert_intact()


@pytest.mark.parametrize(
    ("options", "keys", "last_text"),
    [
        ([], ["q", "k"], "killed by the key k; the last checkpoint remains"),
        ([], ["C-c"], "KeyboardInterrupt"),
        (["--fail", "100"], [], "RuntimeError: it broke"),
        (["--abandon", "100"], [], "epoch    1/1000 | train: Accuracy"),
        (["--epochs", "2"], [], "epoch 2/2 | train: Accuracy"),
    ],
)
def test_terminal_is_restored_at_any_end_of_the_program(options, keys, last_text, terminal):
    screen = terminal(120, 40)
    screen.show(*options)
    if keys:
        screen.wait(*PANES)
    screen.type(*keys)

    screen.wait(last_text)
    screen.assert_intact()


def test_terminal_is_restored_after_a_signal_with_a_handler(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    child = subprocess.run(
        ["pgrep", "-P", screen.state("pane_pid")], capture_output=True, text=True, check=True
    )
    os.kill(int(child.stdout), signal.SIGTERM)

    screen.wait("received SIGTERM")
    screen.assert_intact()


def test_suspended_view_releases_the_terminal_and_resumes(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    screen.type("C-z")
    screen.wait("Stopped")
    screen.assert_intact()
    screen.command("fg")
    screen.wait(*PANES)
    screen.type("Right")
    screen.wait("Loss · Full history", until=fill(80, 24))


def test_view_without_a_keyboard_shows_a_notice(terminal):
    screen = terminal()
    screen.show("--epochs", "3", redirection="< /dev/null")

    screen.wait("no keys: standard input")
    screen.wait("epoch 3/3 | train")
    screen.assert_intact()


def test_background_run_prints_only_lines(terminal):
    screen = terminal()
    screen.show("--epochs", "2", "--batches", "4", redirection="&")

    screen.wait("epoch 2/2 | train")
    screen.assert_intact()
