"""aws-chunked bodies: decoded and verified as they arrive from a client, and encoded for the origin.

Source: Amazon S3 API Reference, "Transferring Payload in Multiple Chunks" and "Including Trailing Headers".
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

from outrider.core.errors import IncompleteBody, InvalidRequest, SignatureDoesNotMatch
from outrider.core.s3.body_integrity import CHECKSUM_CHARS, body_checksum, check_checksum_form

if TYPE_CHECKING:
    from collections.abc import Mapping

LINE_BYTES_MAX = 1024  # a chunk header has at most 16 + 17 + 64 bytes and CRLF; no valid line is longer
TRAILER_BYTES_MAX = 16 * 1024  # the limit of a whole header section in common servers
CHUNK_BYTES_MAX = 5 << 30  # the largest single PUT of S3
CHUNK_BYTES = 1 << 20  # as botocore does; S3 wants 8 KiB or more in all chunks but the last

_CHUNK_HEADER = re.compile(rb"([0-9a-fA-F]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?\r\n")
_TRAILER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"
_EMPTY_SHA256 = sha256(b"").hexdigest()

Piece = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ChunkSigning:
    """The inputs of chunk signatures: the signature of the request (`seed_signature`) and the key that signed it."""

    signing_key: bytes = field(repr=False)
    scope: str
    amz_date: str
    seed_signature: str

    def chunk_signature(self, previous: str, chunk_sha256: str) -> str:
        return self._sign("AWS4-HMAC-SHA256-PAYLOAD", previous, f"{_EMPTY_SHA256}\n{chunk_sha256}")

    def trailer_signature(self, previous: str, trailers: Mapping[str, str]) -> str:
        section = "".join([f"{name}:{trailers[name]}\n" for name in sorted(trailers)])
        return self._sign("AWS4-HMAC-SHA256-TRAILER", previous, sha256(section.encode()).hexdigest())

    def _sign(self, kind: str, previous: str, digests: str) -> str:
        text = f"{kind}\n{self.amz_date}\n{self.scope}\n{previous}\n{digests}"
        return hmac.digest(self.signing_key, text.encode("utf-8", "surrogateescape"), "sha256").hex()


class _State(Enum):
    HEADER = "a chunk header"
    PAYLOAD = "the payload of a chunk"
    PAYLOAD_END = "the end of a chunk"
    TRAILERS = "the trailers"
    END = "the end of the body"
    DONE = "nothing more"


class ChunkedDecoder:
    """Decodes an aws-chunked body and verifies it.

    Invariant: the last byte of the payload is given out only after all signatures and all stated facts of the body have
    held, its length and its trailers among them. Chunks are hashed as they pass and never kept whole, so earlier bytes
    leave unverified. An origin that knows the length cannot commit a body that fails, since its last byte is missing. A
    body of length 0 has no last byte: a caller sends an empty PUT only after `done`. After any error the body is lost,
    and the caller must cut the origin's connection.

    `decoded_length` None: the client stated none. `signing` None: signatures are read but not checked. `trailer_names`
    are those that x-amz-trailer announced: each must come, and no other may. Checksums among them are verified where
    `body_integrity.body_checksum` can compute them.
    """

    def __init__(
        self,
        decoded_length: int | None,
        signing: ChunkSigning | None,
        trailer_names: frozenset[str],
        trailers_expected: bool,
    ) -> None:
        self.trailers: dict[str, str] = {}
        self._decoded_length = decoded_length
        self._signing = signing
        self._trailer_names = trailer_names if trailers_expected else frozenset()
        self._trailers_expected = trailers_expected
        self._checksums = [checksum for name in self._trailer_names if (checksum := body_checksum(name)) is not None]
        self._state = _State.HEADER
        self._line = bytearray()  # an unfinished line, at most as long as its limit
        self._trailer_bytes = 0
        self._trailer_signature_due = False
        self._left = 0  # of the current chunk
        self._total = 0
        self._held: Piece | None = None
        self._hash = sha256()
        self._chunk_signature = ""
        self._previous = "" if signing is None else signing.seed_signature

    @property
    def done(self) -> bool:
        """The body is complete and verified, and all of it was given out."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> list[Piece]:
        """The payload in `data`. The last piece is held back until the next call, or until the end of the body was
        verified.

        Pieces are views into `data`.

        Raises:
            BadDigest, IncompleteBody, InvalidRequest, SignatureDoesNotMatch: the body is bad.
        """
        pieces: list[Piece] = []
        view = memoryview(data)
        position = 0
        while position < len(data):
            if self._state is _State.PAYLOAD:
                piece = view[position : position + self._left]
                position += len(piece)
                self._take(piece, pieces)
                continue
            if self.done:
                self._refuse_more(view[position:])
                break
            limit = TRAILER_BYTES_MAX if self._state is _State.TRAILERS else LINE_BYTES_MAX
            newline = data.find(b"\n", position, position + limit) + 1
            stop = newline or min(len(data), position + limit)
            self._line += view[position:stop]
            position = stop
            self._check_line(limit)
            if newline:
                line = bytes(self._line)
                self._line.clear()
                self._take_line(line)
        if self.done and self._held is not None:
            pieces.append(self._held)
            self._held = None
        return pieces

    def finish(self) -> None:
        """To be called when the client has sent all. Raises IncompleteBody unless the body is complete."""
        if not self.done:
            raise IncompleteBody(f"The aws-chunked body ended before {self._state.value}.")

    def _refuse_more(self, rest: memoryview) -> None:
        self._line += rest[:3]
        # minio-go ends an unsigned trailer section with one CRLF too many.
        if not b"\r\n".startswith(self._line):
            raise InvalidRequest("The aws-chunked body goes on after its end.")

    def _check_line(self, limit: int) -> None:
        if len(self._line) > limit:
            raise InvalidRequest(f"The aws-chunked body is malformed: too long a line in {self._state.value}.")

    def _take(self, piece: memoryview, pieces: list[Piece]) -> None:
        if self._held is not None:
            pieces.append(self._held)
        self._held = piece
        if self._signing is not None:
            self._hash.update(piece)
        for checksum in self._checksums:
            checksum.update(piece)
        self._left -= len(piece)
        if not self._left:
            self._end_chunk()
            self._state = _State.PAYLOAD_END

    def _take_line(self, line: bytes) -> None:
        if self._state is _State.HEADER:
            self._begin_chunk(line)
        elif self._state is _State.TRAILERS:
            self._take_trailer(line)
        elif line != b"\r\n":
            raise InvalidRequest("The aws-chunked body is malformed: a chunk is longer than its header says.")
        elif self._state is _State.PAYLOAD_END:
            self._state = _State.HEADER
        else:
            self._end_body()

    def _begin_chunk(self, line: bytes) -> None:
        match = _CHUNK_HEADER.fullmatch(line)
        if match is None:
            raise InvalidRequest("The aws-chunked body is malformed: a chunk header is not size;chunk-signature=hex.")
        size = int(match[1], 16)
        self._total += size
        if size > CHUNK_BYTES_MAX or (self._decoded_length is not None and self._total > self._decoded_length):
            raise InvalidRequest("The body is longer than x-amz-decoded-content-length says, or than S3 allows.")
        if self._signing is not None and match[2] is None:
            raise SignatureDoesNotMatch("A chunk came without its chunk-signature.")
        self._chunk_signature = (match[2] or b"").decode("ascii")
        if size:
            self._left = size
            self._state = _State.PAYLOAD
            return
        self._end_chunk()
        self._trailer_signature_due = self._trailers_expected and match[2] is not None
        self._state = _State.TRAILERS if self._trailers_expected else _State.END

    def _end_chunk(self) -> None:
        if self._signing is None:
            return
        expected = self._signing.chunk_signature(self._previous, self._hash.hexdigest())
        if not hmac.compare_digest(expected, self._chunk_signature):
            raise SignatureDoesNotMatch("The signature of a chunk does not match.")
        self._previous = expected
        self._hash = sha256()

    def _take_trailer(self, line: bytes) -> None:
        self._trailer_bytes += len(line)
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            raise InvalidRequest("The trailers are too long.")
        try:
            text = line.rstrip(b"\r\n").decode("ascii")
        except UnicodeDecodeError as error:
            raise InvalidRequest("The trailers are malformed.") from error
        if text:
            self._store_trailer(text)
        elif self._trailer_names == self.trailers.keys() and not self._trailer_signature_due:
            # An empty line before that is no end: minio-go puts one before the trailer signature.
            self._end_body()

    def _store_trailer(self, text: str) -> None:
        name, colon, value = text.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if not colon or _TRAILER_NAME.fullmatch(name) is None:
            raise InvalidRequest("The trailers are malformed.")
        if name == _TRAILER_SIGNATURE and self._trailer_signature_due:
            self._check_trailer_signature(value)
            self._trailer_signature_due = False
            return
        if name not in self._trailer_names or name in self.trailers or self._trailers_closed:
            raise InvalidRequest("A trailer came that x-amz-trailer does not announce, or came twice.")
        if name in CHECKSUM_CHARS:
            check_checksum_form(name, value)
        self.trailers[name] = value

    @property
    def _trailers_closed(self) -> bool:
        return self._signing is not None and not self._trailer_signature_due

    def _check_trailer_signature(self, claimed: str) -> None:
        if self._signing is None:
            return
        expected = self._signing.trailer_signature(self._previous, self.trailers)
        if not hmac.compare_digest(expected, claimed):
            raise SignatureDoesNotMatch("The signature of the trailers does not match.")

    def _end_body(self) -> None:
        if self._decoded_length is not None and self._total != self._decoded_length:
            raise IncompleteBody("The body is shorter than x-amz-decoded-content-length says.")
        for checksum in self._checksums:
            checksum.check(self.trailers[checksum.name])
        self._state = _State.DONE


class TrailerEncoder:
    """Encodes a body of known length as unsigned aws-chunked (STREAMING-UNSIGNED-PAYLOAD-TRAILER).

    All chunks but the last have `chunk_bytes`, however the pieces are cut, so that `encoded_length` is known before the
    first piece. `trailers` states the length of each value (`body_integrity.CHECKSUM_CHARS`).
    """

    def __init__(self, decoded_length: int, trailers: Mapping[str, int], chunk_bytes: int = CHUNK_BYTES) -> None:
        if decoded_length < 0 or chunk_bytes < 1:
            raise ValueError(f"no body can be cut like this: {decoded_length} bytes in chunks of {chunk_bytes}")
        self._trailers = dict(trailers)
        self._chunk_bytes = chunk_bytes
        self._decoded_length = decoded_length
        self._left = decoded_length
        self._left_of_chunk = 0

    @property
    def encoded_length(self) -> int:
        """The Content-Length of the framed body."""
        full, rest = divmod(self._decoded_length, self._chunk_bytes)
        framing = full * (len(_header(self._chunk_bytes)) + 2) + (len(_header(rest)) + 2 if rest else 0)
        trailers = sum(len(name) + 1 + chars + 2 for name, chars in self._trailers.items())
        return self._decoded_length + framing + len(_header(0)) + trailers + 2

    def feed(self, piece: Piece) -> list[Piece]:
        """`piece` with the chunk headers and line ends that belong before, into and after it. The payload is not
        copied.

        Raises:
            ValueError: more than `decoded_length` bytes.
        """
        if len(piece) > self._left:
            raise ValueError("more payload than was stated")
        framed: list[Piece] = []
        view = memoryview(piece)
        while view:
            if not self._left_of_chunk:
                self._left_of_chunk = min(self._chunk_bytes, self._left)
                framed.append(_header(self._left_of_chunk))
            part = view[: self._left_of_chunk]
            view = view[len(part) :]
            framed.append(part)
            self._left -= len(part)
            self._left_of_chunk -= len(part)
            if not self._left_of_chunk:
                framed.append(b"\r\n")
        return framed

    def finish(self, trailers: Mapping[str, str]) -> bytes:
        """The end of the body, trailers included.

        Raises:
            ValueError: payload is missing, or the trailers are not those that were stated.
        """
        if self._left or {name: len(value) for name, value in trailers.items()} != self._trailers:
            raise ValueError("less payload than was stated, or other trailers")
        section = "".join([f"{name}:{trailers[name]}\r\n" for name in self._trailers])
        return _header(0) + section.encode("ascii") + b"\r\n"


def _header(size: int) -> bytes:
    return b"%x\r\n" % size
