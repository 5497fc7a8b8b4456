"""A headless Chromium, driven over a pipe by the DevTools protocol: what a page shows, requests and complains about.

No library is needed: each message is JSON followed by a zero byte (`--remote-debugging-pipe`).
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.shared.programs import patient

LIMIT_S = 60.0
_COMPLAINTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


def program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Browser:
    """A browser with one open page."""

    to: int
    back: int
    number: int = 0
    session: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    rest: bytes = b""

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(LIMIT_S)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, limit_s: float) -> dict[str, Any]:
        end = time.monotonic() + patient(limit_s)
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.back], [], [], max(end - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            data = os.read(self.back, 1 << 16)
            assert data, "the browser has gone"
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, *, width: int = 1200, dark: bool = False, printed: bool = False) -> None:
        """Load a page afresh, in a window `width` pixels wide."""
        self.events.clear()
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="print" if printed else "", features=features)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")

    def wait_for(self, event: str) -> None:
        while not any(seen.get("method") == event for seen in self.events):
            self.events.append(self._next(LIMIT_S))

    def ask(self, expression: str) -> Any:
        """Return the value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self) -> list[dict[str, Any]]:
        """Return the messages of the console."""
        return [event["params"] for event in self.events if event.get("method") in _COMPLAINTS]

    def requests(self) -> list[str]:
        """Return the addresses that were requested, including that of the page itself."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def dialogs(self) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == "Page.javascriptDialogOpening"]

    def screenshot(self, path: Path, *, height: int | None = None, scale: float = 1.0) -> None:
        """Write an image of the page, whole or cut off at a height in pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height or 20_000), "scale": scale}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with its own profile; stop it at the end of the block."""
    chromium = program()
    assert chromium, "no Chromium on PATH"
    ours, theirs = os.pipe(), os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    options += [
        "--disable-background-networking",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "about:blank",
    ]
    # the protocol uses file descriptors 3 and 4
    command = ["bash", "-c", f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}', chromium, *options]
    process = subprocess.Popen(
        command, pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(ours[0])
    os.close(theirs[1])
    try:
        one = Browser(ours[1], theirs[0])
        target = one.call("Target.createTarget", url="about:blank")["targetId"]
        one.session = one.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            one.call(f"{domain}.enable")
        yield one
    finally:
        process.terminate()
        process.wait(timeout=patient(LIMIT_S))
        os.close(ours[1])
        os.close(theirs[0])
