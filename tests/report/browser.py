"""A headless browser over a pipe in the DevTools protocol. It needs no driver, port or package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S = 30
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str | None:
    """Return the browser's program, or None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser."""

    def __init__(self, program: str, profile: Path) -> None:
        """Start the browser. `profile` is an empty folder for the files that it writes."""
        read_here, write_there = os.pipe()
        read_there, write_here = os.pipe()
        shell = f'exec "$@" 3<&{read_there} 4>&{write_there}'
        command = [
            "bash",
            "-c",
            shell,
            "browser",
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(read_there, write_there), env={**os.environ, "HOME": str(profile)},
        )  # fmt: skip
        os.close(read_there)
        os.close(write_there)
        self._in, self._out, self._buffer = read_here, write_here, b""
        self._n_sent, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def send(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        """Send a command and return its answer. Events that arrive meanwhile go to `events`."""
        self._n_sent += 1
        message: dict[str, Any] = {"id": self._n_sent, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        end = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._next(end)
            if answer.get("id") == self._n_sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            read = os.read(self._in, 1 << 20)
            if not read:
                raise EOFError("the browser has ended")
            self._buffer += read
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def view(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set size and kind of the screen."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone,
            deviceScaleFactor=2 if phone else 1,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, place: Path | str) -> None:
        """Show a file or an address. Return once its own script has run and its charts have been drawn."""
        self.events.clear()
        self.send("Page.navigate", url=place if isinstance(place, str) else place.resolve().as_uri())
        end = time.monotonic() + TIMEOUT_S
        while not self.value(
            "document.readyState === 'complete' && document.documentElement.dataset.ready === 'yes'"
        ):
            if time.monotonic() > end:
                raise TimeoutError(f"the page does not come up: {self.complaints}")
            time.sleep(0.02)
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page. If it is a promise, return the promise's result."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the mouse to a point, in pixels of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page."""
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    @property
    def complaints(self) -> list[str]:
        """Return errors and warnings of the console and the log since the page was opened."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded":
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Return the addresses that the page requested."""
        sent = (
            event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"
        )
        return [request["request"]["url"] for request in sent]
