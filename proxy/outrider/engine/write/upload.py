"""A client's body on its way to the origin: verified before the origin can commit it, and framed anew for the origin.

The last bytes are held back until all that the client stated of the body was verified: its hash, the signatures of its
chunks, its trailers. A body that fails is cut off before its end, and an S3 origin stores nothing of such a body.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from outrider.core.auth.sigv4 import Identity
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
from outrider.ports import Buffer, Chunks


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


async def one_chunk(body: bytes) -> Chunks:
    """A body that is here as a whole, as a stream."""
    yield body


def upload_of(
    headers: Headers, payload: PayloadRule, identity: Identity | None, source: AsyncIterator[bytes],
    content_length: int | None,
) -> Upload:  # fmt: skip
    """The upload of a body that `payload` and the headers describe. `source`: the body from the wire, without its
    transfer coding. `content_length` None: it came with chunked transfer coding.

    Raises:
        MissingContentLength: the length of the object is not known.
        InvalidArgument, InvalidRequest: the headers describe an impossible body.
    """
    if payload.chunked:
        return _chunked_upload(headers, payload, identity, source)
    if content_length is None:
        raise MissingContentLength
    upload = Upload(body_bytes=content_length, payload_hash=payload.sha256)
    if content_length == 0 and payload.sha256 in (None, hashlib.sha256(b"").hexdigest()):
        return Upload()
    if content_length == 0:
        raise ContentSha256Mismatch
    upload.body = recording_error(upload, _plain(source, payload, content_length))
    return upload


def _chunked_upload(
    headers: Headers, payload: PayloadRule, identity: Identity | None, source: AsyncIterator[bytes]
) -> Upload:
    decoder = _decoder(headers, payload, identity)
    length = decoded_length_of(headers)
    assert length is not None
    names = trailer_names_of(headers) if payload.trailers_expected else frozenset()
    upload = Upload(body_bytes=length)
    if not names:
        upload.body = recording_error(upload, _decoded(source, decoder))
        return upload
    encoder = TrailerEncoder(length, {name: CHECKSUM_CHARS[name] for name in names})
    # No `content-encoding: aws-chunked`: x-amz-content-sha256 states it (for long minio-go sent only that to S3), and
    # SeaweedFS and versitygw would store it as the encoding of the object.
    upload.headers = (
        ("x-amz-decoded-content-length", str(length)),
        ("x-amz-trailer", ",".join(sorted(names))),
    )
    upload.payload_hash = PayloadForm.UNSIGNED_CHUNKS_TRAILER.value
    upload.body_bytes = encoder.encoded_length
    upload.body = recording_error(upload, _reframed(source, decoder, encoder))
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
    raw = await _gathered(_decoded(source, decoder), limit)
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


async def _plain(source: AsyncIterator[bytes], payload: PayloadRule, length: int) -> AsyncIterator[Buffer]:
    digest = hashlib.sha256() if payload.sha256 is not None else None
    held = b""
    left = length
    async for chunk in source:
        if not chunk:
            continue  # an empty chunk must not release the chunk that is held back
        left -= len(chunk)
        if digest is not None:
            digest.update(chunk)
        if held:
            yield held
        held = chunk
    if left:
        raise IncompleteBody
    if digest is not None and not hmac.compare_digest(digest.hexdigest(), payload.sha256 or ""):
        raise ContentSha256Mismatch
    yield held


async def _decoded(source: AsyncIterator[bytes], decoder: ChunkedDecoder) -> AsyncIterator[Buffer]:
    async for chunk in source:
        for piece in decoder.feed(chunk):
            yield piece
    decoder.finish()


async def _reframed(
    source: AsyncIterator[bytes], decoder: ChunkedDecoder, encoder: TrailerEncoder
) -> AsyncIterator[Buffer]:
    async for chunk in source:
        for piece in decoder.feed(chunk):
            for framed in encoder.feed(piece):
                yield framed
    decoder.finish()
    yield encoder.finish(decoder.trailers)
