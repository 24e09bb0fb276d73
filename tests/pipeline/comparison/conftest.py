"""A headless Chromium that tests drive through its DevTools protocol."""

import json
import shutil
import subprocess

import pytest
from waiting import LIMIT_SECONDS, wait_until
from websockets.sync.client import connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find_chromium():
    """Return the path of a Chromium; None if none is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page of one browser."""

    def __init__(self, program, profile):
        self._log = (profile.parent / "chromium.log").open("w")
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.events = []
        self._number = 0
        try:
            self._socket = connect(self._page(profile / "DevToolsActivePort"), max_size=None, proxy=None)
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def _page(self, file):
        """Return the DevTools address of the page; the browser writes its port to *file*."""
        wait_until(
            lambda: len(file.read_text().splitlines()) == 2, lambda: "no port was written", self._process
        )
        port, path = file.read_text().splitlines()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as target:
            target.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            found = json.loads(target.recv(LIMIT_SECONDS))["result"]["targetInfos"]
        [page] = [each["targetId"] for each in found if each["type"] == "page"]
        return f"ws://127.0.0.1:{port}/devtools/page/{page}"

    def call(self, method, **arguments):
        """Return the result of *method*; events that arrive before it are added to `events`."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            message = json.loads(self._socket.recv(LIMIT_SECONDS))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def run(self, script):
        """Return the value of the JavaScript expression *script*; wait for it if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script):
        """Wait until *script* is true."""
        wait_until(lambda: self.run(script), lambda: script)

    def open(self, path):
        """Show the file *path*."""
        self.call("Page.navigate", url=path.resolve().as_uri())

    def events_of(self, method):
        """Return the parameters of all events *method* received until now."""
        self.run("1")  # events that were sent before arrive before the result
        return [each["params"] for each in self.events if each.get("method") == method]

    def close(self):
        """Terminate the browser."""
        self._process.terminate()
        self._process.wait(LIMIT_SECONDS)
        self._log.close()


@pytest.fixture
def browser(tmp_path):
    """Return a browser with an empty page; skip the test if no Chromium is installed."""
    if find_chromium() is None:
        pytest.skip("no chromium is installed")
    browser = Browser(find_chromium(), tmp_path / "profile")
    yield browser
    browser.close()
