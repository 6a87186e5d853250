"""Owns the receivers: processes that speak TLS for this one. See `receiver` for their side."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from struct import Struct
from threading import Thread
from typing import Any, NamedTuple
from weakref import WeakSet

from outrider.adapters.origin import receiver
from outrider.adapters.origin.blocking_connection import BlockingConnection
from outrider.core.errors import Broke, OriginBroke
from outrider.metrics import Metrics
from outrider.ports import Place

log = logging.getLogger(__name__)

# A receiver answers within a turn of its loop, where its disk does: one that does not for so long gets no new line, and
# is given up if it is stopped. A disk gets as long as everywhere (`disk_threads.PATIENCE_S`).
_LOOK_S, _PATIENCE_S = 1.5, 10.0
# Lines stay open between two bodies for less than this.
_IDLE_S = 60.0
# After one was lost, and after one that never was ready. The event loop receives meanwhile.
_LOST_PAUSE_S, _START_AGAIN_S = 5.0, 60.0
# A start takes 25 ms; a body that waited for longer would be better off on the event loop.
_START_S, _BOOT_S = 0.5, 5.0
_MESSAGE_BYTES = 8 * 1024
# OpenSSL and the loader of its library heed these. A receiver gets none of the proxy's secrets.
_ENVIRONMENT = ("LD_LIBRARY_PATH", "OPENSSL_CONF", "OPENSSL_MODULES", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE")


def most_receivers(cores: int, setting: int | None = None) -> int:
    """How many receivers a process has at most that may use so many cores. The loop needs a part of one only: two of
    them on two cores bring a fifth more than one."""
    return min(4, cores) if setting is None else setting


class ReceiverTrust(NamedTuple):
    """The content of PEM files: who is trusted (empty: those whom the system trusts), and the certificate and key that
    are shown to servers that ask for them; then names are not compared (empty: none is shown)."""

    authority: bytes = b""
    cert: bytes = b""
    key: bytes = b""


class Receivers:
    """Called on the event loop's thread. They are started when the first line is wanted, and end when idle."""

    def __init__(self, most: int, metrics: Metrics, trust: Callable[[], ReceiverTrust]) -> None:
        """`trust`: that of now. Receivers with another one get no new lines, and end without any."""
        self._most = most
        self._metrics = metrics
        self._trust = trust
        self._environ = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._running: list[_Receiver] = []
        self._may_start_at = float("-inf")
        self._numbers = count(1)
        self._said = asyncio.Event()
        self._looking: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pids(self) -> list[int]:
        return [each.process.pid for each in self._running]

    async def ready(self) -> bool:
        """Whether `secured` may be called. The first receiver is waited for."""
        if all(each.lines for each in self._running):
            self._start_one()
        if any(not each.is_ready for each in self._running) and not self._ready():
            self._said.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_S):
                    await self._said.wait()
        return bool(self._ready())

    def _ready(self) -> list[_Receiver]:
        trust = self._trust()
        return [each for each in self._running if each.is_ready and not each.is_overdue and each.trust == trust]

    def _start_one(self) -> None:
        loop = asyncio.get_running_loop()
        if len(self._running) >= self._most or self._closed or loop.time() < self._may_start_at:
            return
        try:
            each = _started(self._trust(), self._environ)
        except OSError as error:
            self._may_start_at = loop.time() + _START_AGAIN_S
            log.warning("no receiver, the event loop receives", extra={"error": str(error)})
            return
        self._running.append(each)
        self._metrics.receivers.inc()
        loop.add_reader(each.control, self._on_message, each)
        each.ping()
        self._look_later()

    async def secured(self, far: socket.socket, host: str, timeout_s: float) -> ReceiverConnection:
        """Hand the connection `far` to a receiver, which speaks TLS on it. Raises OriginBroke: there is none."""
        each = min(self._ready(), key=lambda each: each.lines, default=None)
        number = next(self._numbers)
        with far:
            if each is None:
                raise _refused(b"")
            try:
                near, theirs = socket.socketpair()
            except OSError as error:
                raise _refused(receiver.REFUSED + str(error).encode()) from error
            near.setblocking(False)
            with theirs:
                is_given = each.give(number, host, theirs, far)
        try:
            if not is_given:
                raise _refused(b"")
            async with asyncio.timeout(timeout_s):
                said = await asyncio.get_running_loop().sock_recv(near, _MESSAGE_BYTES)
            if said != receiver.READY:
                raise _refused(said)
        except (OSError, TimeoutError) as error:
            near.close()
            raise _refused(receiver.REFUSED + (str(error) or "timed out").encode()) from error
        except BaseException:
            near.close()
            raise
        connection = ReceiverConnection(near, each.control, number)
        each.connections.add(connection)
        return connection

    # -- whether they live -----------------------------------------------------------------------------------------

    def _on_message(self, each: _Receiver) -> None:
        self._said.set()
        if not each.is_alive():
            self._drop(each, "has ended")

    def _look_later(self) -> None:
        if self._looking is None and self._running:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._looking = None
        for each in list(self._running):
            if not each.is_alive():
                self._drop(each, "has ended")
            elif each.is_pinged:
                each.is_overdue = True
                if each.is_stopped() or each.pinged_s_ago() > (_PATIENCE_S if each.is_ready else _BOOT_S):
                    self._drop(each, "does not answer")
            elif each.idle_s() > _IDLE_S or (not each.lines and each.trust != self._trust()):
                self._drop(each, "")
            else:
                each.ping()
        self._look_later()

    def _drop(self, each: _Receiver, why: str) -> None:
        """End it. Its lines break, and what they had to bring is asked for once more. `why` empty: it is not needed."""
        if each not in self._running:
            return
        self._running.remove(each)
        self._metrics.receivers.dec()
        asyncio.get_running_loop().remove_reader(each.control)
        if why:
            self._metrics.receivers_lost.inc()
            log.warning("a receiver is given up", extra={"pid": each.process.pid, "why": why})
            pause_s = _LOST_PAUSE_S if each.is_ready else _START_AGAIN_S
            self._may_start_at = asyncio.get_running_loop().time() + pause_s
            for connection in list(each.connections):
                connection.give_up(is_hung=each.is_overdue and not each.is_stopped())
        each.end()

    def close(self) -> None:
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        for each in list(self._running):
            self._drop(each, "")


class _Receiver:
    """One of them. `lines`: those that it has, as far as it is known."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, trust: ReceiverTrust) -> None:
        self.process = process
        self.control = control
        self.trust = trust
        control.setblocking(False)
        self.lines = 0
        self.connections: WeakSet[ReceiverConnection] = WeakSet()
        self.is_ready = False
        self.is_pinged = False
        self.is_overdue = False
        """It was asked a while ago, and has not answered."""
        self._pinged_at = self._used_at = time.monotonic()

    def give(self, number: int, host: str, near: socket.socket, far: socket.socket) -> bool:
        """Whether it takes the line."""
        try:
            socket.send_fds(self.control, [f"{number} {host}".encode()], [near.fileno(), far.fileno()])
        except OSError:
            return False
        self.lines += 1
        self._used_at = time.monotonic()
        return True

    def ping(self) -> None:
        """Whether it lives, and how many lines it has."""
        self.is_pinged, self._pinged_at = True, time.monotonic()
        with suppress(OSError):
            self.control.send(b"?")

    def is_alive(self) -> bool:
        """Whether it lives, by what it has said or not."""
        try:
            while said := self.control.recv(64):
                self.lines, self.is_pinged, self.is_overdue, self.is_ready = int(said), False, False, True
                if self.lines:
                    self._used_at = time.monotonic()
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def idle_s(self) -> float:
        return time.monotonic() - self._used_at

    def pinged_s_ago(self) -> float:
        return time.monotonic() - self._pinged_at

    def is_stopped(self) -> bool:
        """By a signal, or a debugger."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    def end(self) -> None:
        # A thread may be about to write there: its number must not be another file's.
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.process.kill()
        # A process that waits for a disk dies late, and no event loop waits for it.
        with suppress(RuntimeError):
            Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        self.process.wait()
        self.control.close()


class ReceiverConnection(BlockingConnection):
    """A line of a receiver. Some bytes pass at first; the rest passes, too, or goes into a file. See `PASSED_BYTES`."""

    def __init__(self, near: socket.socket, control: socket.socket, number: int) -> None:
        super().__init__(near)
        self._control = control
        self._number = number
        self._may_pass = receiver.PASSED_BYTES
        self._is_hung = False

    @property
    def writes(self) -> bool:
        return not self._pieces and not self._may_pass and self.reader.is_measured

    def _room(self, count: int) -> int:
        if not self._may_pass:
            self._may_pass = receiver.PASSED_BYTES
            self._order(f"{self._number}")
        return min(count, self._may_pass)

    def _has_read(self, count: int) -> None:
        self._may_pass -= count

    def write(self, place: Place, count: int, progress: Callable[[int, float], None]) -> tuple[bytes, int] | None:
        is_hashed = place.begins_at is not None
        begins_at = place.begins_at if is_hashed else -1
        self._order(f"{self._number} {place.offset} {count} {begins_at} {place.crc}", place.file)
        self._may_pass = receiver.PASSED_BYTES
        while count:
            more, disk_s = self._record(receiver.PROGRESS)
            if more < 0:
                raise OSError(-more, os.strerror(-more))
            if not 0 < more <= count:
                raise OriginBroke("its receiver has lost count")
            count -= more
            self.reader.passed(more)
            progress(more, disk_s)
        return None if not is_hashed else self._record(receiver.HASHES)

    def _record(self, form: Struct) -> Any:
        record = self._in_time(self.socket.recv, form.size, socket.MSG_WAITALL)
        if self._is_hung:
            raise TimeoutError("no answer")
        if len(record) < form.size:
            raise OriginBroke("the body was shorter than it said")
        return form.unpack(record)

    def _order(self, message: str, *files: int) -> None:
        try:
            socket.send_fds(self._control, [message.encode()], files)
        except OSError as error:
            raise OriginBroke("its receiver has ended") from error

    def _end(self) -> None:
        # A receiver that died has not said so: its line has ended on both sides, and a body that goes on until the end
        # may not be whole.
        look = select.poll()
        look.register(self.socket, 0)
        if look.poll(0):
            raise OriginBroke("its receiver has ended")
        super()._end()

    def give_up(self, *, is_hung: bool) -> None:
        """The receiver has been given up. `is_hung`: most likely it waits for the disk."""
        self._is_hung = is_hung
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        # Its end is read once the receiver has left the line, and writes no more into the file.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)


def _started(trust: ReceiverTrust, environ: Mapping[str, str]) -> _Receiver:
    """Raises OSError."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ExitStack() as files:
        try:
            fds = [_in_memory(content, files) for content in trust if content]
            paths = [f"/proc/self/fd/{fd}" for fd in fds]
            argv = [sys.executable, "-I", "-S", receiver.__file__, str(theirs.fileno()), _libraries(), *paths]
            process = subprocess.Popen(
                argv, pass_fds=(theirs.fileno(), *fds), env=dict(environ), stdin=subprocess.DEVNULL
            )  # fmt: skip
        except BaseException:
            control.close()
            raise
    return _Receiver(process, control, trust)


def _in_memory(content: bytes, files: ExitStack) -> int:
    """Files change one after the other: a receiver gets what was read of all at once."""
    fd = os.memfd_create("trust")
    files.callback(os.close, fd)
    os.write(fd, content)
    return fd


def _libraries() -> str:
    """The folders of the two libraries that hash. The one for CRCs is not imported before it is needed."""
    folders = {
        str(Path(spec.origin).parents[1]) for spec in map(find_spec, ("xxhash", "anycrc")) if spec and spec.origin
    }
    return os.pathsep.join(sorted(folders))


def _refused(said: bytes) -> OriginBroke:
    """`said`: the first message of a line; empty: there was none."""
    why = said[1:].decode("utf-8", "replace") or "the receiver has ended"
    return OriginBroke(f"cannot connect: {why}", cause=Broke.CONNECT, lasting=said[:1] == receiver.UNTRUSTED)
