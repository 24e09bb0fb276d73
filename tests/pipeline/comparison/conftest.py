"""A headless Chromium, driven by its DevTools protocol: what it shows, says and asks for."""

import base64
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


def chromium():
    """Where a Chromium is; None where there is none."""
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
        wait_until(lambda: len(file.read_text().splitlines()) == 2, lambda: "no port", self._process)
        port, path = file.read_text().splitlines()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, proxy=None) as whole:
            whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            found = json.loads(whole.recv(LIMIT_SECONDS))["result"]["targetInfos"]
        [page] = [each["targetId"] for each in found if each["type"] == "page"]
        return f"ws://127.0.0.1:{port}/devtools/page/{page}"

    def call(self, method, **arguments):
        """What *method* answers; what is told meanwhile goes to `events`."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            said = json.loads(self._socket.recv(LIMIT_SECONDS))
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]
            self.events.append(said)

    def run(self, script):
        """What the JavaScript *script* comes to, once it is resolved."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, script):
        """Until *script* is true."""
        wait_until(lambda: self.run(script), lambda: script)

    def open(self, path):
        """Show the file *path*."""
        self.call("Page.navigate", url=path.resolve().as_uri())

    def picture(self, path, *, width, height, scheme="light"):
        """The page in a window of that size, and in a colour *scheme*, as the PNG *path*."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.run("new Promise(done => setTimeout(done, 1500))")
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def said(self, method):
        """Every event of that name so far."""
        self.run("1")  # whatever was on its way comes before the answer
        return [each["params"] for each in self.events if each.get("method") == method]

    def close(self):
        """End the browser."""
        self._process.terminate()
        self._process.wait(LIMIT_SECONDS)
        self._log.close()


@pytest.fixture
def browser(tmp_path):
    """A browser with an empty page; the test is skipped where no Chromium is installed."""
    if chromium() is None:
        pytest.skip("no chromium is installed")
    started = Browser(chromium(), tmp_path / "profile")
    yield started
    started.close()
