"""Browser uploads by a form: the form goes to its bucket, and the origin can commit no incomplete file."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outrider.core.auth.form_policy import SizeRange
from outrider.core.errors import (
    EntityTooLarge,
    EntityTooSmall,
    IncompleteBody,
    MalformedPOSTRequest,
    MissingContentLength,
    S3Error,
)
from outrider.core.s3.operation import ForgetScope, Operation, OperationKind
from outrider.engine.write.form_upload import IncomingForm, incoming_form
from tests.support.engine import REF, Engine, engine
from tests.support.forms import BOUNDARY, encoded

KIND = f"multipart/form-data; boundary={BOUNDARY}"
FORM = Operation(OperationKind.FORWARD, "POST", REF.bucket, REF.key, (), ForgetScope.KEY)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path, freshness="immutable") as made:
        made.origin.put(REF, b"old")
        yield made


async def arriving(body: bytes, step: int = 7) -> AsyncIterator[bytes]:
    for at in range(0, len(body), step):
        yield body[at : at + step]


async def incoming(body: bytes, length: int | None = None, step: int = 7) -> IncomingForm:
    return await incoming_form(KIND, arriving(body, step), len(body) if length is None else length)


async def test_a_form_is_sent_to_its_bucket_with_its_length_and_its_key_is_forgotten(room: Engine) -> None:
    await room.get()
    body = encoded([("key", REF.key)], b"file")
    form = await incoming(body)
    answer = await room.passthrough.send(FORM, (), form.upload(SizeRange()))
    await answer.body.aclose()
    sent = room.origin.log[-1]
    assert (sent.method, sent.bucket, sent.key) == ("POST", REF.bucket, "")
    assert sent.form is form.form
    assert sent.body_bytes == len(b"file") + len(f"\r\n--{BOUNDARY}--\r\n")
    assert room.versions.fresh(REF) is None


async def sent(body: bytes, length: int | None, step: int, sizes: SizeRange) -> tuple[bytes, Exception | None]:
    """The bytes of the form that were sent to the origin, and the error that stopped the upload, if any."""
    upload = (await incoming(body, length, step)).upload(sizes)
    assert upload.body is not None
    out = b""
    with contextlib.suppress(S3Error):
        async for piece in upload.body:
            out += bytes(piece)
    return out, upload.error


@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_the_last_bytes_are_held_back_until_the_whole_form_was_checked(step: int) -> None:
    file = b"file" * 100
    body = encoded([("key", "k")], file, after=[("submit", "Go")])
    out, error = await sent(body, None, step, SizeRange(400, 400))
    assert error is None
    assert out.startswith(file + f"\r\n--{BOUNDARY}--\r\n".encode())
    halfway = body[: body.index(b"filefile") + 50]
    for cut, length, sizes, wrong in [
        (body[:-60], len(body), SizeRange(), IncompleteBody),
        (halfway, len(body), SizeRange(), IncompleteBody),
        (halfway, None, SizeRange(), MalformedPOSTRequest),
        (body, None, SizeRange(0, 399), EntityTooLarge),
        (body, None, SizeRange(401, 500), EntityTooSmall),
    ]:
        out, error = await sent(cut, length, step, sizes)
        assert isinstance(error, wrong), (cut[-80:], error)
        assert file.startswith(out)


async def test_a_form_without_a_length_or_an_end_is_refused() -> None:
    body = encoded([("key", "k")], b"")
    with pytest.raises(MissingContentLength):
        await incoming_form(KIND, arriving(body), None)
    with pytest.raises(IncompleteBody):
        await incoming(body[:20], len(body))
    with pytest.raises(MalformedPOSTRequest):
        await incoming(body[:20])
