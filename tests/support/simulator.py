"""The bucket simulator: an S3 endpoint before a real one, with chosen rates, latency and faults."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.support.child import Child, free_ports
from tests.support.conditions import Conditions, Counts, Line, Request, Tally
from tests.support.simulator_exchange import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


JOIN_S = 60.0


class Simulator:
    """One thread a connection. Heads pass untouched, so signatures made for `endpoint` stay valid at the bucket.

    `keys` are the bucket's, for the one fault that must sign anew (`DEAF`). Change `conditions` at any time, or replace
    it. After `stop()` no thread or socket of it is left.
    """

    def __init__(
        self,
        origin: str,
        conditions: Conditions | None = None,
        *,
        keys: tuple[str, str] | None = None,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        listen: str = "127.0.0.1",
        inside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`listen`: the address where it listens. Its listener is made within `inside`, so that it can stand on a host
        of a switch, before a bucket that does not."""
        host, _, origin_port = origin.rpartition(":")
        self.origin = (host, int(origin_port))
        self.keys = keys
        self.conditions = conditions or Conditions()
        self.recorder = Tally()
        self.clock = clock
        self.sleep = sleep
        self.total = Line(clock())
        self.port = port or free_ports(1)[0]
        self.host = listen
        self._inside = inside
        self._released = threading.Event()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._clients: dict[socket.socket, threading.Thread] = {}
        # Threads whose connection is over, and that may have a step to go.
        self._ending: set[threading.Thread] = set()
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    def counts(self) -> Counts:
        return self.recorder.counts()

    def log(self) -> list[Request]:
        """The last requests in the order of their arrival, all since the last reset up to a limit."""
        return self.recorder.log()

    def reset(self) -> Counts:
        """Restart the counters; returns the counts until now."""
        return self.recorder.reset()

    def release(self) -> None:
        """Let every stalled answer go on; later stalls wait again."""
        released, self._released = self._released, threading.Event()
        released.set()

    def holding(self) -> Callable[[float | None], object]:
        return self._released.wait

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Within it, connections are refused; open connections are cut at its beginning."""
        self._close()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        with self._inside():
            listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(1024)
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="simulator", daemon=True)
        self._acceptor.start()

    def stop(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(client,), name="simulator connection", daemon=True)
            with self._lock:
                self._clients[client] = thread
            self.recorder.connected()
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            Connection(self, client).run()
        finally:
            with self._lock:
                self._clients.pop(client, None)
                self._ending = {thread for thread in self._ending if thread.is_alive()} | {threading.current_thread()}
            client.close()

    def _close(self) -> None:
        listener, acceptor = self._listener, self._acceptor
        if listener is None or acceptor is None:
            return
        # Closing alone would not wake the thread that waits in accept().
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join(JOIN_S)
        listener.close()
        self._listener = self._acceptor = None
        self.release()
        with self._lock:
            threads = [*self._clients.values(), *self._ending]
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            if thread is not threading.current_thread():  # an `act` of the conditions may end the whole simulator
                thread.join(JOIN_S)


def control_server(simulator: Simulator, port: int) -> ThreadingHTTPServer:
    """Control a simulator over HTTP: GET /counts, GET /log, POST /reset (answers the counts), POST /release,
    /conditions."""

    def log(_: dict[str, Any]) -> Any:
        return [[request.method, request.path, request.query, request.headers] for request in simulator.log()]

    actions: dict[str, Callable[[dict[str, Any]], Any]] = {
        "GET /counts": lambda _: simulator.counts().as_json(),
        "GET /log": log,
        "POST /reset": lambda _: simulator.reset().as_json(),
        "POST /release": lambda _: simulator.release(),
        "POST /conditions": lambda knobs: simulator.conditions.update(knobs),
    }

    class Control(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._act()

        def do_POST(self) -> None:
            self._act()

        def _act(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            action = actions.get(f"{self.command} {self.path}")
            if action is None:
                self._answer(404, {"error": f"there are {sorted(actions)}"})
                return
            try:
                self._answer(200, action(json.loads(body or "{}")))
            except (ValueError, TypeError, KeyError) as error:
                self._answer(400, {"error": str(error)})

        def _answer(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            pass

    return ThreadingHTTPServer(("127.0.0.1", port), Control)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulator", description=__doc__)
    parser.add_argument("--origin", required=True, metavar="HOST:PORT")
    parser.add_argument("--listen", default="127.0.0.1", metavar="HOST")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--control-port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ttfb-ms", type=float, default=0.0)
    parser.add_argument("--per-connection-mb", type=float, default=None, help="MB/s (10^6); default: no limit")
    parser.add_argument("--total-mb", type=float, default=None, help="MB/s (10^6); default: no limit")
    chosen = parser.parse_args()
    conditions = Conditions(
        ttfb_s=chosen.ttfb_ms / 1e3,
        connection_bytes_s=chosen.per_connection_mb and chosen.per_connection_mb * 1e6,
        total_bytes_s=chosen.total_mb and chosen.total_mb * 1e6,
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with Simulator(chosen.origin, conditions, port=chosen.port, listen=chosen.listen) as simulator:
        control = control_server(simulator, chosen.control_port)
        threading.Thread(target=control.serve_forever, daemon=True).start()
        ports = {"port": simulator.port, "control_port": control.server_port}
        print(json.dumps({"endpoint": simulator.endpoint, **ports}), flush=True)
        ended.wait()
        control.shutdown()
        control.server_close()


if __name__ == "__main__":
    main()


READY_DEADLINE_S = 60.0
ANSWER_S = 60.0
REPOSITORY = Path(__file__).parents[2]


class SimulatorProcess:
    """The same surface as `Simulator`, with `set_conditions(knob=value)` in place of the conditions object."""

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
        """`listen`: the address where it listens. It is started, and gets its conditions, within `inside`: so it can
        stand on a host of a switch."""
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
            self.set_conditions(**self._knobs)
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

    def set_conditions(self, **knobs: Any) -> None:
        """Names and values as in `Conditions`; `faults` as a list of dicts."""
        self._call("/conditions", knobs)

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
