"""The live view on a real terminal: tmux draws it, types, and tells what it looks like."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from waiting import wait_until

ROOT = Path(__file__).parents[2]
PANES = {"Metrics", "Status", "Controls", "Progress"}

pytestmark = pytest.mark.skipif(
    not shutil.which("tmux"), reason="tmux is not installed: it plays the terminal"
)


class Terminal:
    """A shell in a terminal of a size, with a tmux server of its own."""

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
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    def type(self, *keys):
        for key in keys:
            self.tmux("send-keys", key)

    def command(self, line):
        self.tmux("send-keys", "-l", line)
        self.type("Enter")

    def show(self, *options, redirection=""):
        script = Path(__file__).with_name("show.py")
        self.command(f"{shlex.join([sys.executable, str(script), *options])} {redirection}")

    @property
    def lines(self):
        """What stands on the screen, each line with the spaces at its end."""
        return self.tmux("capture-pane", "-p", "-N").split("\n")[:-1]

    def state(self, name):
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def wait(self, *texts, until=lambda lines: True):
        """The screen, once all of *texts* stand on it and *until* holds of its lines."""

        def shown():
            lines = self.lines
            return lines if all(text in "\n".join(lines) for text in texts) and until(lines) else None

        return wait_until(shown, lambda: f"{texts} never came:\n" + "\n".join(self.lines))

    def assert_intact(self):
        """The shell is there, echoes what is typed, and shows its cursor, on the normal screen."""
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


def fills(columns, rows):
    """Whether every line is as wide as the screen, and begins and ends with a pane's border."""

    def check(lines):
        borders = all(line[:1] in "╭│╰" and line[-1:] in "╮│╯" for line in lines)
        return borders and [cell_len(line) for line in lines] == [columns] * rows

    return check


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (160, 48)])
def test_all_panes_fill_the_terminal(columns, rows, terminal):
    screen = terminal(columns, rows)
    screen.show()

    lines = screen.wait(*PANES, "Accuracy · Full history", "valid epoch", "Mode Training")

    assert fills(columns, rows)(lines)
    assert (screen.state("cursor_flag"), screen.state("alternate_on")) == ("0", "1")
    for text in (
        "/1000",
        "Iteration ",
        "Items ",
        "train epoch 7.25 Gb - batch 7.25 Gb",
        "━━ valid",
    ):
        assert text in "\n".join(lines), text


def test_arrows_change_metric_and_view(terminal):
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


def test_the_view_follows_the_size_of_the_terminal(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    for columns, rows in ((100, 30), (50, 14), (72, 18)):
        screen.tmux("resize-window", "-x", str(columns), "-y", str(rows))
        screen.wait("Progress", until=fills(columns, rows))


def test_the_question_can_be_cancelled(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    screen.type("q")
    screen.wait("Quit?", "stop after this step", "kill at once")
    screen.type("c")
    screen.wait(*PANES, until=lambda lines: "Quit?" not in "\n".join(lines))

    assert screen.state("alternate_on") == "1"


def test_stopping_by_key_ends_the_program_and_leaves_its_lines(terminal):
    screen = terminal()
    screen.show()
    screen.wait("Epoch 2/")

    screen.type("q", "s")

    screen.wait("epoch    1/1000 | train: Accuracy", "stopped: the key to stop was pressed")
    screen.assert_intact()


@pytest.mark.parametrize(
    ("options", "keys", "last_words"),
    [
        ([], ["q", "k"], "killed by the key k; the last checkpoint remains"),
        ([], ["C-c"], "KeyboardInterrupt"),
        (["--fail", "100"], [], "RuntimeError: it broke"),
        (["--abandon", "100"], [], "epoch    1/1000 | train: Accuracy"),
        (["--epochs", "2"], [], "epoch 2/2 | train: Accuracy"),
    ],
)
def test_however_it_ends_the_terminal_is_as_before(options, keys, last_words, terminal):
    screen = terminal(120, 40)
    screen.show(*options)
    if keys:
        screen.wait(*PANES)
    screen.type(*keys)

    screen.wait(last_words)
    screen.assert_intact()


def test_a_signal_that_a_handler_turns_into_an_exception_leaves_the_terminal_as_before(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    child = subprocess.run(
        ["pgrep", "-P", screen.state("pane_pid")], capture_output=True, text=True, check=True
    )
    os.kill(int(child.stdout), signal.SIGTERM)

    screen.wait("asked to end")
    screen.assert_intact()


def test_a_suspended_view_leaves_the_terminal_to_the_shell_and_comes_back(terminal):
    screen = terminal()
    screen.show()
    screen.wait(*PANES)

    screen.type("C-z")
    screen.wait("Stopped")
    screen.assert_intact()
    screen.command("fg")
    screen.wait(*PANES)
    screen.type("Right")
    screen.wait("Loss · Full history", until=fills(80, 24))


def test_without_a_keyboard_the_view_says_so(terminal):
    screen = terminal()
    screen.show("--epochs", "3", redirection="< /dev/null")

    screen.wait("no keys: standard input")
    screen.wait("epoch 3/3 | train")
    screen.assert_intact()


def test_in_the_background_only_lines_are_printed(terminal):
    screen = terminal()
    screen.show("--epochs", "2", "--batches", "4", redirection="&")

    screen.wait("epoch 2/2 | train")
    screen.assert_intact()
