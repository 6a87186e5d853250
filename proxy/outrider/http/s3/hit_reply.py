"""The parts of a hit's reply that the fast path keeps ready, and the way in which head and body are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.core.cache.block_file import PAGE_BYTES, SMALL_BYTES
from outrider.core.model import Headers, ObjectVersion
from outrider.core.s3.headers import without_checksums
from outrider.core.s3.operation import Operation
from outrider.engine.read.hit_lookup import Piece
from outrider.engine.read.version_cache import Known
from outrider.http.record.hit_counts import Tallies
from outrider.http.wire.sender import SocketSender
from outrider.pagecache import in_memory, read_in_memory
from outrider.ports import OpenBlock

# The memory of a subject beside its heads.
_SUBJECT_BYTES = 1024
# The way in which head and body are sent costs more than all decisions about them. The kernel holds 17 pages, or parts
# of pages, in one segment, and the head is one of them. A body of 64 KiB that begins within a page has 17 by itself.
# Kernel time for one such body, with a bare server on two cores: 40 us if the head waits for the body (MSG_MORE), 36 us
# as a copy, 23 us if the head is sent alone. For a body that begins with a page: 18 us if the head waits, 22 us if it
# does not, and the other way round from some 128 KiB on. A copy is best for a small body that begins within a page.
# A small body that begins with a page is copied too, because that takes one system call less. A bare server, in all, by
# sendfile and by a copy: 4 KiB 5.0 and 4.7 us, 16 KiB 4.9 and 4.0 us, 32 KiB 5.2 and 5.7 us, 50 kB 5.8 and 8.1 us.
COPIED_BYTES = SMALL_BYTES
_JOINED_BYTES = 128 * 1024

# The body of a reply: block files whose bytes are in memory, or the bytes themselves if they are few, or the error of
# the disk.
HitBody = Sequence[Piece | tuple[None, int, int, int]] | memoryview | OSError


@dataclass(slots=True)
class Subject:
    """An object that was read, with the parts that all its replies share."""

    operation: Operation
    known: Known
    log: str
    name_bytes: int
    tallies: Tallies
    is_folder: bool
    """The key ends with a slash."""
    whole: bytes = b""
    """The head of a reply with the whole object, up to the request id; so are the two below."""
    whole_with_checksums: bytes = b""
    part: bytes = b""

    def prepare(self, version: ObjectVersion) -> None:
        plain = without_checksums(version.headers)
        tail = b"content-length: %d\r\n" % version.size
        self.whole = _head(200, plain) + tail
        # Most objects have no checksums, so one head serves for both. The head of a part is made at the first Range,
        # because most objects are read either whole or in parts.
        self.whole_with_checksums = self.whole
        if len(plain) < len(version.headers):
            self.whole_with_checksums = _head(200, version.headers) + tail

    def prepare_part(self) -> None:
        self.part = _head(206, without_checksums(self.known.version.headers))

    @property
    def size_bytes(self) -> int:
        heads = 2 * len(self.whole)  # the head of a part is about as long
        if self.whole_with_checksums is not self.whole:
            heads += len(self.whole_with_checksums)
        # The key is held by the name, the operation and the log line, the headers of the version by the version itself.
        return _SUBJECT_BYTES + heads + 4 * self.name_bytes


def send_file_at_once(
    wire: SocketSender, head: bytes, file: OpenBlock, offset: int, length: int, copied: memoryview
) -> tuple[int, int, bool] | None:
    """As `send_at_once`, for a body that lies in one file. `copied`: room for `COPIED_BYTES`. None: nothing was sent,
    because not all of the body is in memory."""
    try:
        if length > COPIED_BYTES:
            if not (file.stays_in_memory or in_memory(file.fd, offset, length)):
                return None
            return send_at_once(wire, head, ((None, file.fd, offset, length),), length)
        body = copied[:length]
        if not read_in_memory(file.fd, offset, body, stays=file.stays_in_memory):
            return None
    except OSError as error:
        return send_at_once(wire, head, error, length)
    try:
        went = wire.send_parts_now(head, body)
    except OSError:
        return 0, 0, False  # the client is gone: the slow path gets the same error, and records it
    return (len(head), went - len(head), False) if went > len(head) else (went, 0, False)


def send_at_once(wire: SocketSender, head: bytes, body: HitBody, length: int) -> tuple[int, int, bool]:
    """How many bytes of the head, and of the body of `length` bytes, the kernel took without a wait; and whether the
    disk failed."""
    taken = sent = 0
    try:
        if isinstance(body, memoryview):
            went = wire.send_parts_now(head, body)
            return min(went, len(head)), max(0, went - len(head)), False
        if isinstance(body, OSError):
            return wire.send_now(head, more=True), 0, True
        joined = bool(body) and length <= _JOINED_BYTES and body[0][2] % PAGE_BYTES == 0
        taken = wire.send_now(head, more=joined)
        if taken == len(head):
            for _, fd, offset, length in body:
                went = wire.send_file_now(fd, offset, length)
                sent += went
                if went < length:
                    break
    except ConnectionError:
        pass  # the client is gone: the slow path gets the same error, and records it
    except OSError:
        return taken, sent, True
    return taken, sent, False


def _head(status: int, headers: Headers) -> bytes:
    reason = "OK" if status == 200 else "Partial Content"
    lines = [f"HTTP/1.1 {status} {reason}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "x-cache: HIT", "server: outrider", ""]).encode("utf-8", "surrogateescape")
