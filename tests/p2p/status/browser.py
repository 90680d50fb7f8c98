"""A headless browser, controlled over a pipe (Chrome DevTools Protocol)."""

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ANSWER_S: Final = 40.0


def program() -> str | None:
    """The path of a browser, or the value of SHOAL_BROWSER; None: there is none."""
    return os.environ.get("SHOAL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one tab."""

    def __init__(self, sink: int, source: int) -> None:
        self._sink, self._source = sink, source
        self._buffer, self._number, self._session = b"", 0, ""
        self._kept: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method; returns the answer. Raises AssertionError for an error or a timeout."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sink, json.dumps(message).encode() + b"\0")
        answer = self._hear("id", self._number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def _hear(self, key: str, value: object) -> dict[str, Any]:
        """Wait for the first message in which `key` is `value`; others are kept."""
        for index, said in enumerate(self._kept):
            if said.get(key) == value:
                return self._kept.pop(index)
        deadline = time.monotonic() + ANSWER_S
        while True:
            while b"\0" not in self._buffer:
                left_s = deadline - time.monotonic()
                assert left_s > 0 and select.select([self._source], [], [], left_s)[0], (
                    f"it has not said {key} = {value}"
                )
                read = os.read(self._source, 1 << 20)
                assert read, f"the browser ended before it said {key} = {value}"
                self._buffer += read
            text, _, self._buffer = self._buffer.partition(b"\0")
            new: dict[str, Any] = json.loads(text)
            if new.get(key) == value:
                return new
            self._kept.append(new)

    def open(self, url: str, *, is_dark: bool, width: int = 1400, height: int = 500) -> None:
        """Open a page; returns when it is loaded, except data that its script requests later."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.enable")
        self.call("Page.navigate", url=url)
        self._hear("method", "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; waits for promises."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until `condition` holds on the page."""
        self.evaluate(
            "new Promise(done => { const look = () => { if (document.body && (" + condition + ")) done(true); };"
            " new MutationObserver(look).observe(document,"
            " {subtree: true, childList: true, characterData: true, attributes: true}); look(); })"
        )

    def screenshot(self) -> bytes:
        """A screenshot as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """A browser that ends with the context; its profile is in `folder`."""
    path = program()
    assert path is not None
    (their_source, sink), (source, their_sink) = os.pipe(), os.pipe()

    def prepare() -> None:
        os.dup2(their_source, 3)
        os.dup2(their_sink, 4)

    words = [path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        [*words, f"--user-data-dir={folder}", "--no-first-run", "--hide-scrollbars"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(3, 4, their_source, their_sink),
        preexec_fn=prepare,
        start_new_session=True,
    )
    os.close(their_source)
    os.close(their_sink)
    try:
        yield Browser(sink, source)
    finally:
        process.kill()
        process.wait(ANSWER_S)
        os.close(sink)
        os.close(source)


def pixels(png: bytes) -> list[bytes]:
    """Rows of 8-bit RGB or RGBA pixels, as written by browsers (RFC 2083, section 6)."""
    at, data, width, channels = 8, b"", 0, 3
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, color = struct.unpack_from(">IIBB", body)
            assert depth == 8 and color in (2, 6), (depth, color)
            channels = 3 if color == 2 else 4
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    raw, stride, rows = zlib.decompress(data), width * channels, list[bytes]()
    above = bytes(stride)
    for begin in range(0, len(raw), stride + 1):
        above = _unfiltered(raw[begin], raw[begin + 1 : begin + 1 + stride], above, channels)
        rows.append(above)
    return [b"".join(row[i : i + 3] for i in range(0, stride, channels)) for row in rows]


def _unfiltered(kind: int, line: bytes, above: bytes, channels: int) -> bytes:
    found = bytearray(len(line))
    for i, byte in enumerate(line):
        left, corner = (found[i - channels], above[i - channels]) if i >= channels else (0, 0)
        up = above[i]
        match kind:
            case 0:
                predicted = 0
            case 1:
                predicted = left
            case 2:
                predicted = up
            case 3:
                predicted = (left + up) // 2
            case _:
                estimate = left + up - corner
                predicted = min((left, up, corner), key=lambda each: abs(estimate - each))
        found[i] = (byte + predicted) & 255
    return bytes(found)
