"""The program of a receiver: a process that speaks TLS for the proxy, and puts large bodies into files.

It is started by its path, with the standard library and the two that hash (`Receivers`). For each line the proxy hands
over two sockets: the connection to the server, and one end of a pair on which the line is plain. The first bytes
pass; then the receiver waits for orders: what becomes of the rest: so many bytes go into a file at an offset, and are
hashed on the way, or they pass as well. Requests, replies and all judgement of them stay in the proxy. A receiver of
the bucket's bytes knows no credentials; what it sees of them is a signed head that passes. One of other members' bytes
has this member's certificate, and its key.

One thread and one epoll serve all lines: a thread for each would hand the GIL on after each TLS record (16 KiB).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress
from functools import cached_property

READY, REFUSED, UNTRUSTED = b"+", b"-", b"!"
"""A line begins with one of them: the handshake is done, or it failed, as the rest says. UNTRUSTED: it will fail
again."""
PASSED_BYTES = 64 * 1024
"""So many bytes pass at the begin of a line, after each file, and each time that more may. Both sides count them, over
all replies: a file follows where both have come to the end."""
PROGRESS = struct.Struct("<qd")
"""While bytes go into a file, the proxy reads how many more it has, and the seconds that the disk took. A negative
number: the errno of the disk, at which the line ends."""
HASHES = struct.Struct("<16sQ")
"""After that it reads the XXH3 (128 bits) of the block and its CRC, if it wants them."""

# So many bytes of one line, and then it is the turn of the others, and of the proxy's questions.
_TURN_BYTES = 256 * 1024
# The proxy gets a report of bytes in a file after so many, or this time.
_REPORT_BYTES, _REPORT_S = 1024 * 1024, 0.005
# The proxy has left a line, or will ask for nothing more on it.
_LEFT = select.EPOLLHUP | select.EPOLLRDHUP
_MESSAGE_BYTES = 4096


class Loop:
    """Called on one thread."""

    def __init__(self, authority: str = "", *identity: str) -> None:
        """`authority`: a file of certificates; empty: those of the system are trusted. `identity`: the files of a
        certificate and its key to show, to servers whose names are not compared; empty: none is shown."""
        self._authority = authority
        self._identity = identity
        self._epoll = select.epoll()
        self._by_fd: dict[int, TlsLine] = {}
        self.landing = memoryview(bytearray(_TURN_BYTES))
        self.sessions: dict[str, ssl.SSLSession] = {}
        self.lines: dict[int, TlsLine] = {}
        self.unfinished: set[TlsLine] = set()
        """The lines that have more to do without any event."""
        self.unreported: set[TlsLine] = set()
        """The lines with bytes in a file of which the proxy does not know."""

    @cached_property
    def tls(self) -> ssl.SSLContext:
        if not self._identity:
            return ssl.create_default_context(cafile=self._authority or None)
        # As `PeerTls` has it.
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        tls.check_hostname = False
        tls.load_cert_chain(*self._identity)
        tls.load_verify_locations(self._authority)
        return tls

    def watch(self, line: TlsLine, fd: int, events: int) -> None:
        """`events` of epoll; -1: none any more."""
        if events < 0:
            if self._by_fd.pop(fd, None) is not None:
                self._epoll.unregister(fd)
        elif fd in self._by_fd:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._by_fd[fd] = line

    def run(self, control: socket.socket) -> None:
        """Serve until the proxy ends `control`, on which it hands over lines and files, and asks how many there are."""
        self._epoll.register(control, select.EPOLLIN)
        # `recv_fds` heeds no flags (Python 3.11).
        control.setblocking(False)
        try:
            with suppress(OSError):
                self._serve(control)
        finally:
            for line in list(self.lines.values()):
                line.end()
            self._epoll.close()
            control.close()

    def _serve(self, control: socket.socket) -> None:
        """Raises OSError: the control broke."""
        while True:
            wait_s = 0.0 if self.unfinished else _REPORT_S if self.unreported else None
            for fd, events in self._epoll.poll(wait_s):
                if (line := self._by_fd.get(fd)) is not None:
                    line.step(is_left=bool(events & _LEFT) and fd == line.near.fileno())
            again, self.unfinished = self.unfinished, set()
            for line in again | {line for line in self.unreported if line.is_due()}:
                line.step()
            # After the lines: a new one may have the number of a descriptor that has just been closed.
            if not self._obeyed(control):
                return

    def _obeyed(self, control: socket.socket) -> bool:
        """Do all that the proxy has requested. False: it has ended. Raises OSError then, too."""
        while True:
            try:
                message, fds, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 2)
            except BlockingIOError:
                return True
            if not message:
                return False
            if message == b"?":
                with suppress(BlockingIOError):
                    control.send(b"%d" % len(self.lines))
            else:
                self._obey(message.decode().split(" "), fds)

    def _obey(self, words: list[str], fds: list[int]) -> None:
        number = int(words.pop(0))
        if len(fds) == 2:
            near, far = (socket.socket(fileno=fd) for fd in fds)
            self.lines[number] = line = TlsLine(self, number, near, far, words[0])
            line.step()
        elif (known := self.lines.get(number)) is not None:
            known.go_on(fds[0] if fds else -1, *map(int, words[:3]), crc=words[3] if words else "")
        else:
            for fd in fds:
                os.close(fd)


class Hashes:
    """The hashes of a block. `crc`: the model; empty: none."""

    def __init__(self, crc: str) -> None:
        # Nothing else in this process needs them.
        import xxhash

        self._digest, self._calc, self._crc = xxhash.xxh3_128(), None, 0
        if crc:
            import anycrc

            self._calc = anycrc.Model(crc).calc

    def update(self, data: bytes | memoryview) -> None:
        self._digest.update(data)
        if self._calc is not None:
            self._crc = self._calc(data, self._crc)

    def packed(self) -> bytes:
        return HASHES.pack(self._digest.digest(), self._crc)


class TlsLine:
    """A connection to a server, and the socket on which it is plain."""

    def __init__(self, loop: Loop, number: int, near: socket.socket, far: socket.socket, host: str) -> None:
        self._loop = loop
        self._number = number
        self._host = host
        self.near = near
        self._far = far
        self._tls: ssl.SSLSocket | None = None
        # Bytes that the one side has sent and the other has not taken.
        self._to_far = self._to_near = b""
        self._may_pass = PASSED_BYTES
        # Where the next bytes belong, and how many; -1: no file.
        self._file, self._offset, self._left = -1, 0, 0
        self._hashes: Hashes | None = None
        # How many more bytes the file has than the proxy knows of, since when, and the seconds that the disk took.
        self._unreported, self._unreported_since, self._disk_s = 0, 0.0, 0.0
        self._is_shaking = True
        self._is_over = False
        # The connection broke; the bytes before that are handed on first.
        self._broke: OSError | None = None
        self._has_session = False
        self._watched = {near: -1, far: -1}
        for sock in (near, far):
            sock.setblocking(False)

    def go_on(self, file: int, offset: int = 0, count: int = 0, begins_at: int = -1, *, crc: str = "") -> None:
        """`count` bytes belong into the descriptor `file`; -1: more may pass. `begins_at`: where the block begins that
        they are the last of, and that is to be hashed; -1: none."""
        self._may_pass = PASSED_BYTES
        self._file, self._offset, self._left = file, offset, count
        try:
            self._hashes = Hashes(crc) if begins_at >= 0 else None
            while 0 <= begins_at < offset and self._hashes is not None:
                data = os.pread(file, min(_TURN_BYTES, offset - begins_at), begins_at)
                if not data:
                    raise OSError("the file is shorter than the proxy said")
                self._hashes.update(data)
                begins_at += len(data)
        except Exception as error:  # noqa: BLE001 - the other lines go on
            self._refuse(error)
        self.step()

    def step(self, *, is_left: bool = False) -> None:
        """Move what can be moved. `is_left`: the proxy has left the line."""
        if self._number not in self._loop.lines:
            return
        if is_left:
            self.end()
            return
        try:
            tls = self._tls or self._begin()
            if self._is_shaking and not self._shake(tls):
                return
            if self._unreported and self.is_due():
                self.report()
            events = 0 if self._is_over else self._send_on(tls)
            events |= self._receive(tls)
            self._set(tls, events or -1)
            if (self._is_over or self._broke is not None) and self._hand_on():
                # The proxy reads that the line ends, and leaves it. One that breaks, or whose receiver dies, ends on
                # both sides at once.
                self.report()
                if self._broke is not None:
                    raise self._broke
                self.near.shutdown(socket.SHUT_WR)
                self._set(self.near, select.EPOLLRDHUP)
                return
            may_ask = not (self._is_over or self._to_far)
            near = (select.EPOLLOUT if self._to_near else 0) | (select.EPOLLIN if may_ask else 0)
            self._set(self.near, near | select.EPOLLRDHUP)
        except Exception as error:  # noqa: BLE001 - the other lines go on
            self._refuse(error)

    def _begin(self) -> ssl.SSLSocket:
        self._tls = self._loop.tls.wrap_socket(
            self._far, server_hostname=self._host, do_handshake_on_connect=False, suppress_ragged_eofs=False,
            session=self._loop.sessions.get(self._host),
        )  # fmt: skip
        self._watched[self._tls] = -1
        return self._tls

    def _shake(self, tls: ssl.SSLSocket) -> bool:
        """Whether the handshake is done."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._set(tls, select.EPOLLIN)
        except ssl.SSLWantWriteError:
            self._set(tls, select.EPOLLOUT)
        else:
            self._is_shaking = False
            self.near.send(READY)
        self._set(self.near, select.EPOLLRDHUP)
        return not self._is_shaking

    def _send_on(self, tls: ssl.SSLSocket) -> int:
        """Bytes of a request. Returns the events of `tls` that are waited for."""
        while True:
            if not self._to_far:
                try:
                    self._to_far = self.near.recv(PASSED_BYTES)
                except BlockingIOError:
                    return 0
                if not self._to_far:
                    raise ConnectionResetError("the proxy has ended the line")
            try:
                self._to_far = self._to_far[tls.send(self._to_far) :]
            except ssl.SSLWantReadError:
                return select.EPOLLIN
            except ssl.SSLWantWriteError:
                return select.EPOLLOUT

    def _receive(self, tls: ssl.SSLSocket) -> int:
        """Bytes of a reply. Returns the events of `tls` that are waited for."""
        moved = 0
        while not self._is_over and self._broke is None and self._hand_on():
            if not (wanted := self._left or self._may_pass):
                return 0
            if moved >= _TURN_BYTES:
                self._loop.unfinished.add(self)
                return 0
            room = self._loop.landing[:wanted]
            filled, is_dry = 0, False
            try:
                while filled < len(room) and not self._is_over:
                    count = tls.recv_into(room[filled:])
                    filled += count
                    self._is_over = not count
            except ssl.SSLWantReadError:
                is_dry = True
            except OSError as error:
                self._broke = error
            if filled:
                self._keep_session(tls)
                moved += filled
                if self._left:
                    self._write(room[:filled])
                else:
                    self._may_pass -= filled
                    self._hand_on(room[:filled])
            if is_dry:
                return select.EPOLLIN
        return 0

    def _write(self, data: memoryview) -> None:
        began = time.monotonic()
        if not self._unreported:
            self._unreported_since = began
        if self._hashes is not None:
            self._hashes.update(data)
        try:
            while data:
                count = os.pwrite(self._file, data, self._offset)
                self._offset += count
                self._left -= count
                self._unreported += count
                data = data[count:]
        except OSError as error:
            self._hand_on(PROGRESS.pack(-(error.errno or 5), 0.0))
            raise
        self._disk_s += time.monotonic() - began
        if not self._left:
            self._close_file()
            self.report(self._hashes.packed() if self._hashes is not None else b"")
        elif self._unreported >= _REPORT_BYTES:
            self.report()
        else:
            self._loop.unreported.add(self)

    def is_due(self) -> bool:
        return time.monotonic() - self._unreported_since >= _REPORT_S

    def report(self, hashes: bytes = b"") -> None:
        """Say how many more bytes the file has, unless the proxy has not read the last report. `hashes`: those
        of the whole."""
        if self._to_near and self._left:
            return
        self._loop.unreported.discard(self)
        if self._unreported:
            self._hand_on(PROGRESS.pack(self._unreported, self._disk_s) + hashes)
            self._unreported, self._disk_s = 0, 0.0

    def _close_file(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            # Some file systems report a failed write only then. Its number is free all the same.
            with suppress(OSError):
                os.close(file)

    def _keep_session(self, tls: ssl.SSLSocket) -> None:
        """For the next line to this server. It comes with the first bytes, not with the handshake (TLS 1.3)."""
        if not self._has_session and tls.session is not None:
            self._has_session = True
            self._loop.sessions[self._host] = tls.session

    def _hand_on(self, data: bytes | memoryview = b"") -> bool:
        """Send `data` to the proxy, behind what it has not taken yet. Returns whether it has taken all."""
        data = self._to_near + data if self._to_near else data
        if data:
            count = 0
            with suppress(BlockingIOError):
                count = self.near.send(data)
            self._to_near = bytes(data[count:])
        return not self._to_near

    def _set(self, sock: socket.socket, events: int) -> None:
        if self._watched[sock] != events:
            self._watched[sock] = events
            self._loop.watch(self, sock.fileno(), events)

    def _refuse(self, error: Exception) -> None:
        if self._is_shaking:
            kind = UNTRUSTED if isinstance(error, ssl.SSLCertVerificationError | ValueError) else REFUSED
            with suppress(OSError):
                self.near.send(kind + (str(error) or type(error).__name__).encode()[:_MESSAGE_BYTES])
        self.end()

    def end(self) -> None:
        """Once the proxy reads that the line has ended, nothing is written into its file any more."""
        del self._loop.lines[self._number]
        self._loop.unfinished.discard(self)
        self._loop.unreported.discard(self)
        self._close_file()
        for sock in (self._tls or self._far, self.near):
            self._set(sock, -1)
            sock.close()


if __name__ == "__main__":
    # It ends with the proxy, which may stop slowly, and not with the signals that go to both.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.path += sys.argv[2].split(os.pathsep)
    Loop(*sys.argv[3:]).run(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
