"""A headless Chromium that tests and benchmarks drive through its DevTools protocol."""

import base64
import json
import shutil
import subprocess

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
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-hang-monitor",
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
        """Wait until *script* is true; the error shows what the page holds."""
        wait_until(lambda: self.run(f"!!({script})"), lambda: f"{script}\n{self._describe()}")

    def _describe(self):
        """Return whether frames are drawn, what has the focus, the console, and the text of the page."""
        frame = "new Promise(done => { requestAnimationFrame(() => done(1)); setTimeout(done, 5000, 0); })"
        state = """({
            visibility: document.visibilityState,
            focus: document.activeElement.outerHTML.slice(0, 200),
            scroll: [scrollX, scrollY],
            dataset: { ...document.body.dataset },
            text: document.body.innerText.slice(0, 2000),
        })"""
        return json.dumps([self.run(frame), self.run(state), self.messages()], indent=1)

    def open(self, page):
        """Show the file or the URL *page*."""
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())

    def clear(self):
        """Show an empty page of the default size, and forget all events."""
        self.call("Emulation.clearDeviceMetricsOverride")
        self.call("Emulation.setEmulatedMedia", features=[])
        self.open("about:blank")
        self.wait("location.href === 'about:blank' && document.readyState === 'complete'")
        self.events.clear()

    def resize(self, width, height=900, scheme="light"):
        """Set the size of the page in pixels, and whether it is light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def hover(self, selector):
        """Move the mouse to the center of the element *selector*, and return its coordinates.

        Waits until the element has the same place in two frames and nothing covers it.
        """
        place = self.run(f"""(async () => {{
            const frame = () => new Promise(requestAnimationFrame);
            const find = () => {{
                const target = document.querySelector({json.dumps(selector)});
                const box = target.getBoundingClientRect();
                return [target, box.x + box.width / 2, box.y + box.height / 2];
            }};
            for (let tries = 0; tries < 200; tries += 1) {{
                find()[0].scrollIntoView({{ block: "center", inline: "nearest" }});
                await frame();
                const before = find();
                await frame();
                const [target, x, y] = find();
                const top = document.elementFromPoint(x, y);
                if (before[1] === x && before[2] === y && top?.closest({json.dumps(selector)})) return [x, y];
            }}
            return null;
        }})()""")
        assert place is not None, f"{selector} moves or is covered"
        point = dict(zip("xy", place, strict=True))
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **point)
        return point

    def click(self, selector):
        """Click the center of the element *selector* with the mouse."""
        point = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **point)

    def write(self, selector, text):
        """Click the field *selector* and type *text*."""
        self.click(selector)
        self.call("Input.insertText", text=text)

    def press(self, key, code=0, text=""):
        """Press and release *key* in the focused element."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **typed)

    def choose(self, selector, value):
        """Choose the option *value* of the list *selector*."""
        self.run(f"""(() => {{
            const list = document.querySelector({json.dumps(selector)});
            list.value = {json.dumps(value)};
            list.dispatchEvent(new Event("change", {{ bubbles: true }}));
        }})()""")

    def messages(self):
        """Return the exceptions, and what the page wrote to the console and to the log."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [each for kind in kinds for each in self.events_of(kind)]

    def save_screenshot(self, path):
        """Write an image of the visible part of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def events_of(self, method):
        """Return the parameters of all events *method* received until now."""
        self.run("1")  # events that were sent before arrive before the result
        return [each["params"] for each in self.events if each.get("method") == method]

    def close(self):
        """Terminate the browser."""
        self._process.terminate()
        self._process.wait(LIMIT_SECONDS)
        self._log.close()
