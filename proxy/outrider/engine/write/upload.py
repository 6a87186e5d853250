"""A client's body on its way to the origin: verified before the origin can commit it, and framed anew for the origin.

The last bytes are held back until all that the client stated of the body was verified: its hash, the signatures of its
chunks, its trailers. A body that fails is cut off before its end, and an S3 origin stores nothing of such a body.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from outrider.core.auth.verification import Identity
from outrider.core.errors import ContentSha256Mismatch, IncompleteBody, InvalidRequest, MissingContentLength
from outrider.core.model import Headers
from outrider.core.s3.aws_chunked import ChunkedDecoder, ChunkSigning, TrailerEncoder
from outrider.core.s3.body_integrity import (
    CHECKSUM_CHARS,
    PayloadForm,
    PayloadRule,
    decoded_length_of,
    trailer_names_of,
)
from outrider.core.s3.form_fields import PostForm
from outrider.ports import BodyInThread, Buffer, Chunks


class BodyOnSocket(Protocol):
    """The bytes of a body as they come on the wire, for a thread. `begin` and `end`: as `ports.BodyInThread`.
    A Protocol, as `http` implements it."""

    def begin(self) -> bool: ...

    def receive(self, beside: int) -> bytes | None:
        """The next bytes; None: the body has ended; empty: the descriptor `beside` has something to read. Raises
        S3Error."""
        ...

    def end(self) -> None: ...


@dataclass(slots=True)
class Upload:
    """The body to send to the origin. `error`: why `body` failed, if it did. It is the answer for the client, and not
    the origin's error about the body that was cut off."""

    body: AsyncIterator[Buffer] | None = None
    body_bytes: int | None = None
    payload_hash: str | None = None
    headers: Headers = ()
    form: PostForm | None = None
    """A browser's upload: `body` begins with the first byte of the form's file."""
    error: Exception | None = field(default=None)
    in_thread: BodyInThread | None = None
    """The same body, for a thread."""


async def one_chunk(body: bytes) -> Chunks:
    """A body that is here as a whole, as a stream."""
    yield body


def upload_of(
    headers: Headers, payload: PayloadRule, identity: Identity | None, source: AsyncIterator[bytes],
    content_length: int | None, on_socket: BodyOnSocket | None = None,
) -> Upload:  # fmt: skip
    """The upload of a body that `payload` and the headers describe. `source`: the body from the wire, without its
    transfer coding. `content_length` None: it came with chunked transfer coding. `on_socket`: the same bytes as
    `source`; None: a thread cannot have them.

    Raises:
        MissingContentLength: the length of the object is not known.
        InvalidArgument, InvalidRequest: the headers describe an impossible body.
    """
    if payload.chunked:
        return _chunked_upload(headers, payload, identity, source, on_socket)
    if content_length is None:
        raise MissingContentLength
    upload = Upload(body_bytes=content_length, payload_hash=payload.sha256)
    if content_length == 0 and payload.sha256 in (None, hashlib.sha256(b"").hexdigest()):
        return Upload()
    if content_length == 0:
        raise ContentSha256Mismatch
    return _verified(upload, source, on_socket, _Plain(payload, content_length))


def _chunked_upload(
    headers: Headers, payload: PayloadRule, identity: Identity | None, source: AsyncIterator[bytes],
    on_socket: BodyOnSocket | None,
) -> Upload:  # fmt: skip
    decoder = _decoder(headers, payload, identity)
    length = decoded_length_of(headers)
    assert length is not None
    names = trailer_names_of(headers) if payload.trailers_expected else frozenset()
    upload = Upload(body_bytes=length)
    if not names:
        return _verified(upload, source, on_socket, _Chunked(decoder))
    encoder = TrailerEncoder(length, {name: CHECKSUM_CHARS[name] for name in names})
    # No `content-encoding: aws-chunked`: x-amz-content-sha256 states it (for long minio-go sent only that to S3), and
    # SeaweedFS and versitygw would store it as the encoding of the object.
    upload.headers = (
        ("x-amz-decoded-content-length", str(length)),
        ("x-amz-trailer", ",".join(sorted(names))),
    )
    upload.payload_hash = PayloadForm.UNSIGNED_CHUNKS_TRAILER.value
    upload.body_bytes = encoder.encoded_length
    return _verified(upload, source, on_socket, _Chunked(decoder, encoder))


def _verified(upload: Upload, source: AsyncIterator[bytes], on_socket: BodyOnSocket | None, checks: _Checks) -> Upload:
    upload.body = recording_error(upload, _through(source, checks))
    if on_socket is not None:
        upload.in_thread = _InThread(upload, on_socket, checks)
    return upload


async def whole_body(
    headers: Headers, payload: PayloadRule, identity: Identity | None, source: AsyncIterator[bytes],
    content_length: int | None, *, limit: int,
) -> tuple[bytes, Headers]:  # fmt: skip
    """A small body, decoded and verified, and its trailers.

    Raises:
        InvalidRequest: the body is longer than `limit` bytes.
        S3Error: as `upload_of` and its body raise.
    """
    trailers: Headers = ()
    if not payload.chunked:
        body = upload_of(headers, payload, identity, source, content_length).body
        return await _gathered(body, limit), trailers
    decoder = _decoder(headers, payload, identity)
    raw = await _gathered(_through(source, _Chunked(decoder)), limit)
    return raw, tuple(decoder.trailers.items())


async def _gathered(body: AsyncIterator[Buffer] | None, limit: int) -> bytes:
    gathered = bytearray()
    if body is not None:
        async for piece in body:
            gathered += piece
            if len(gathered) > limit:
                raise InvalidRequest("The body of this request is too long.")
    return bytes(gathered)


def _decoder(headers: Headers, payload: PayloadRule, identity: Identity | None) -> ChunkedDecoder:
    length = decoded_length_of(headers)
    if length is None:
        raise MissingContentLength
    signing = None
    if identity is not None and payload.chunks_signed:
        signing = ChunkSigning(identity.signing_key, identity.scope, identity.amz_date, identity.seed_signature)
    return ChunkedDecoder(length, signing, trailer_names_of(headers), payload.trailers_expected)


async def recording_error(upload: Upload, body: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
    """`body`, with `upload.error` set when it fails."""
    try:
        async for piece in body:
            yield piece
    except Exception as error:
        upload.error = error
        raise


class _InThread:
    """Satisfies `ports.BodyInThread`."""

    def __init__(self, upload: Upload, on_socket: BodyOnSocket, checks: _Checks) -> None:
        self._upload = upload
        self._on_socket = on_socket
        self._checks = checks
        self._ended = False

    def begin(self) -> bool:
        return self._on_socket.begin()

    def read(self, beside: int) -> list[Buffer] | None:
        try:
            while not self._ended:
                data = self._on_socket.receive(beside)
                if data == b"":
                    return []
                self._ended = data is None
                # The first pieces may be held back.
                if pieces := self._checks.finish() if data is None else self._checks.feed(data):
                    return pieces
        except Exception as error:
            self._upload.error = error
            raise
        return None

    def end(self) -> None:
        self._on_socket.end()


class _Plain:
    """The way of a body from the wire to the origin, as it is: its length and its hash are verified. Both methods raise
    S3Error."""

    def __init__(self, payload: PayloadRule, length: int) -> None:
        self._sha256 = payload.sha256
        self._digest = hashlib.sha256() if payload.sha256 is not None else None
        self._held = b""
        self._left = length

    def feed(self, chunk: bytes) -> list[Buffer]:
        """The pieces to send now. They may be views into this `chunk`, or into one before."""
        if not chunk:
            return []  # an empty chunk must not release the chunk that is held back
        self._left -= len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        held, self._held = self._held, chunk
        return [held] if held else []

    def finish(self) -> list[Buffer]:
        """The last pieces, once the client has sent all."""
        if self._left:
            raise IncompleteBody
        if self._digest is not None and not hmac.compare_digest(self._digest.hexdigest(), self._sha256 or ""):
            raise ContentSha256Mismatch
        return [self._held]


class _Chunked:
    """As `_Plain`, for an aws-chunked body: as the object that it carries, or framed anew."""

    def __init__(self, decoder: ChunkedDecoder, encoder: TrailerEncoder | None = None) -> None:
        self._decoder = decoder
        self._encoder = encoder

    def feed(self, chunk: bytes) -> list[Buffer]:
        pieces = self._decoder.feed(chunk)
        if self._encoder is None:
            return [*pieces]
        return [framed for piece in pieces for framed in self._encoder.feed(piece)]

    def finish(self) -> list[Buffer]:
        self._decoder.finish()
        return [] if self._encoder is None else [self._encoder.finish(self._decoder.trailers)]


_Checks = _Plain | _Chunked


async def _through(source: AsyncIterator[bytes], checks: _Checks) -> AsyncIterator[Buffer]:
    async for chunk in source:
        for piece in checks.feed(chunk):
            yield piece
    for piece in checks.finish():
        yield piece
