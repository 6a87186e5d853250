"""The bucket simulator as a process of its own, with an interpreter lock apart from that of the measured code."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.child import Child
from tests.support.weather import Counts, Request

if TYPE_CHECKING:
    from collections.abc import Callable

READY_DEADLINE_S = 60.0
ANSWER_S = 60.0
REPOSITORY = Path(__file__).parents[2]


class SimulatorProcess:
    """The same surface as `Simulator`, with `set_weather(knob=value)` in place of the weather object."""

    def __init__(
        self,
        origin: str,
        *,
        ttfb_s: float = 0.0,
        connection_bytes_s: float | None = None,
        total_bytes_s: float | None = None,
        listen: str = "127.0.0.1",
        inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`listen`: the address where it listens. It is started, and told its weather, within `inside`: so it can stand
        on a host of a switch."""
        self._listen = listen
        self._inside = inside
        self._origin = origin
        self._knobs = {
            "ttfb_s": ttfb_s,
            "connection_bytes_s": connection_bytes_s,
            "total_bytes_s": total_bytes_s,
        }
        self._child: Child | None = None
        self.endpoint = ""
        self._control = ""

    def start(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="outrider-simulator-"))
        with self._inside():
            self._child = self._begun(directory)
        try:
            self._child.wait_until(self._announced, what="the simulator", deadline_s=READY_DEADLINE_S)
            self.set_weather(**self._knobs)
        except BaseException:
            self.stop()
            raise

    def _begun(self, directory: Path) -> Child:
        return Child(
            [sys.executable, "-m", "tests.support.simulator", "--origin", self._origin, "--listen", self._listen],
            log=directory / "log",
            cwd=REPOSITORY,
            scratch=(directory,),
            stop_signal=signal.SIGKILL,
        )

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._child is not None, "not started"
        return self._child.process.pid

    def counts(self) -> Counts:
        return Counts(**self._call("/counts"))

    def log(self) -> list[Request]:
        return [Request(*fields) for fields in self._call("/log")]

    def reset(self) -> Counts:
        return Counts(**self._call("/reset", {}))

    def release(self) -> None:
        self._call("/release", {})

    def set_weather(self, **knobs: Any) -> None:
        """Names and values as in `Weather`; `faults` as a list of dicts."""
        self._call("/weather", knobs)

    def _announced(self) -> bool:
        assert self._child is not None
        line, newline, _ = self._child.log.read_text().partition("\n")
        if not newline:
            return False
        try:
            ports = json.loads(line)
        except ValueError:
            # Most likely a traceback: the process is about to end, and its log will be shown.
            return False
        self.endpoint = ports["endpoint"]
        self._control = f"http://127.0.0.1:{ports['control_port']}"
        return True

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with self._inside(), urllib.request.urlopen(self._control + path, data=data, timeout=ANSWER_S) as answer:
            return json.load(answer)
