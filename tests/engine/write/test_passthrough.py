"""Writes through the proxy: each is sent once, and every name that it may change is revalidated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.core.auth.verification import Identity
from outrider.core.errors import ContentSha256Mismatch, ServiceUnavailable, SignatureDoesNotMatch
from outrider.core.model import ObjectRef
from outrider.core.s3.body_integrity import UNSIGNED, PayloadForm, PayloadRule, payload_of
from outrider.core.s3.operation import classify
from outrider.engine.write.passthrough import ForwardAnswer, Passthrough
from outrider.engine.write.upload import Upload, upload_of
from tests.support.engine import REF, Engine, engine
from tests.support.fakes import Fault

OTHER = ObjectRef("train", "b.tar")


@pytest.fixture(params=["immutable", "ttl:60"])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path / "c", freshness=request.param) as room:
        room.origin.put(REF, b"old")
        room.origin.put(OTHER, b"other")
        yield room


async def source(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def send(
    room: Engine, method: str, target: str, body: bytes | None = None, *, headers: tuple[tuple[str, str], ...] = (),
    keys: list[str] | None = None,
) -> tuple[int, bytes]:  # fmt: skip
    upload = Upload() if body is None else upload_of((), UNSIGNED, None, source(body), len(body))
    answer = await room.passthrough.send(classify(method, target, headers), headers, upload, keys)
    return answer.status, await drained(answer)


async def drained(answer: ForwardAnswer) -> bytes:
    body = b"".join([chunk async for chunk in answer.body])
    await answer.body.aclose()
    return body


async def test_the_next_get_after_a_put_returns_the_new_object(room: Engine) -> None:
    assert await room.get() == b"old"
    assert await send(room, "PUT", "/train/a.tar", b"new!") == (200, b"")
    asked = room.origin.count("GET")
    assert await room.get() == b"new!"
    assert room.origin.count("GET") == asked + 1
    assert await room.get() == b"new!"
    assert room.origin.count("GET") == asked + 1
    await room.tasks.settle()


async def test_a_write_forgets_no_other_name(room: Engine) -> None:
    await room.get(OTHER)
    asked = room.origin.count("GET")
    await send(room, "PUT", "/train/a.tar", b"new!")
    await room.get(OTHER)
    assert room.origin.count("GET") == asked


async def test_the_next_get_after_a_delete_finds_nothing(room: Engine) -> None:
    await room.get()
    assert (await send(room, "DELETE", "/train/a.tar"))[0] == 204
    with pytest.raises(Exception, match="404"):
        await room.get()


@pytest.mark.parametrize(
    ("method", "target", "headers", "keys", "forgotten"),
    [
        ("PUT", "/train/a.tar", (("x-amz-copy-source", "train/b.tar"),), None, {REF}),
        ("PUT", "/train/a.tar", (("x-amz-rename-source", "b.tar"),), None, {REF, OTHER}),
        ("POST", "/train/a.tar?uploadId=u", (), None, {REF}),
        ("POST", "/train?delete", (), ["b.tar", "c"], {OTHER}),
        ("POST", "/train?delete", (), None, {REF, OTHER}),
        ("POST", "/train", (), None, {REF, OTHER}),
        ("PUT", "/train?lifecycle", (), None, {REF, OTHER}),
        # MinIO unpacks an archive into other keys, and deletes all keys that begin with one.
        ("PUT", "/train/batch.tar", (("x-amz-meta-snowball-auto-extract", "true"),), None, {REF, OTHER}),
        ("DELETE", "/train/a", (("x-minio-force-delete", "true"),), None, {REF, OTHER}),
        ("PUT", "/train/batch.tar", (("x-amz-invented-tomorrow", "1"),), None, {REF, OTHER}),
        ("POST", "/train/c?delete", (), None, {REF, OTHER}),
        ("POST", "/elsewhere", (), None, set()),
        ("GET", "/train/a.tar?acl", (), None, set()),
    ],
)
async def test_each_write_forgets_the_names_that_it_may_have_changed(
    method: str, target: str, headers: tuple[tuple[str, str], ...], keys: list[str] | None, forgotten: set[ObjectRef],
    room: Engine,
) -> None:  # fmt: skip
    await room.get()
    await room.get(OTHER)
    await send(room, method, target, headers=headers, keys=keys)
    assert {ref for ref in (REF, OTHER) if room.versions.fresh(ref) is None} == forgotten


async def test_a_written_name_is_noted_before_the_write_is_sent_and_before_it_is_answered(room: Engine) -> None:
    noted: list[tuple[list[object], int]] = []

    async def note(names: Sequence[object]) -> None:
        noted.append((list(names), room.origin.count("PUT") + room.origin.count("POST")))

    noting = Passthrough(room.origin, room.origin_reader, room.versions, room.list_cache.forget, note=note)
    room = replace(room, passthrough=noting)
    await send(room, "PUT", "/train/a.tar?tagging", b"")
    assert noted == [([REF], 0), ([REF], 1)]
    noted.clear()
    await send(room, "POST", "/train?delete", keys=["b.tar"])
    await send(room, "PUT", "/train?lifecycle")
    assert [names for names, _ in noted] == [[OTHER], [OTHER], ["train"], ["train"]]


@pytest.mark.parametrize("read", ["GET", "HEAD"])
async def test_a_read_that_a_write_overtook_sets_no_version(read: str, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(method=read, gate=gate, answer_first=True)]
    overtaken = asyncio.create_task(room.get() if read == "GET" else room.reads.head(REF, {}))
    while not room.origin.log:
        await asyncio.sleep(0)
    await send(room, "PUT", "/train/a.tar", b"new!")
    # The older answer is still on its way. A GET that begins now must neither wait for it nor use it.
    assert await room.get() == b"new!"
    gate.set()
    await overtaken
    assert await room.get() == b"new!"
    assert (await room.reads.head(REF, {})).length == 4
    await room.tasks.settle()


async def test_an_answer_made_during_the_write_sets_no_version(room: Engine) -> None:
    gate = asyncio.Event()
    await room.get()
    room.origin.faults = [Fault(method="PUT", gate=gate)]
    write = asyncio.create_task(send(room, "PUT", "/train/a.tar", b"new!"))
    while room.origin.count("PUT") == 0:
        await asyncio.sleep(0)
    # The origin has not carried the write out yet. The old object is right, but the answer must not be used later.
    assert await room.get() == b"old"
    gate.set()
    await write
    assert await room.get() == b"new!"
    await room.tasks.settle()


async def test_the_next_read_revalidates_from_the_head_of_the_2xx_on(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(method="PUT", gate=gate)]
    upload = upload_of((), UNSIGNED, None, source(b"new!"), 4)
    write = asyncio.create_task(room.passthrough.send(classify("PUT", "/train/a.tar", ()), (), upload, None))
    while room.origin.count("PUT") == 0:
        await asyncio.sleep(0)
    assert await room.get() == b"old"
    gate.set()
    answer = await write
    assert await room.get() == b"new!"
    await drained(answer)


async def test_between_the_head_of_the_reply_and_its_end_a_read_is_believed_only_until_the_end(room: Engine) -> None:
    # CompleteMultipartUpload answers 200 at once and goes on: the write is done at the end of the body.
    answer = await room.passthrough.send(classify("POST", "/train/a.tar?uploadId=u", ()), (), Upload(), None)
    assert await room.get() == b"old"
    room.origin.put(REF, b"complete")
    await drained(answer)
    assert await room.get() == b"complete"


async def test_a_write_whose_client_left_forgets_its_name_all_the_same(room: Engine) -> None:
    await room.get()
    gate = asyncio.Event()
    room.origin.faults = [Fault(method="PUT", gate=gate, answer_first=True)]
    write = asyncio.create_task(send(room, "PUT", "/train/a.tar", b"new!"))
    while room.origin.count("PUT") == 0:
        await asyncio.sleep(0)
    assert await room.get() == b"new!"
    room.origin.put(REF, b"newer")
    write.cancel()
    await asyncio.wait([write])
    assert await room.get() == b"newer"


@pytest.mark.parametrize("fault", [Fault(times=None, status=503), Fault(times=None, refuse=True)])
async def test_a_write_is_sent_exactly_once(fault: Fault, room: Engine) -> None:
    room.origin.faults = [fault]
    if fault.refuse:
        with pytest.raises(ServiceUnavailable):
            await send(room, "PUT", "/train/a.tar", b"x")
    else:
        assert (await send(room, "PUT", "/train/a.tar", b"x"))[0] == 503
    assert room.origin.count("PUT") == 1


@pytest.mark.parametrize("fault", [{"refuse": True}, {"status": 500}])
async def test_a_write_of_unknown_outcome_may_be_carried_out_later_and_is_seen_then(
    fault: dict[str, Any], room: Engine
) -> None:
    await room.get()
    room.origin.faults = [Fault(method="PUT", **fault)]
    with suppress(ServiceUnavailable):
        await send(room, "PUT", "/train/a.tar", b"new!")
    assert await room.get() == b"old"
    room.clock.advance(30)
    room.origin.put(REF, b"new!")
    assert await room.get() == b"new!"
    room.clock.advance(3600)
    assert await room.get() == b"new!"
    asked = room.origin.count()
    assert await room.get() == b"new!"
    assert room.origin.count() == asked, "the doubt ends"
    await room.tasks.settle()


@pytest.mark.parametrize("status", [200, 403])
async def test_a_write_that_was_answered_leaves_no_doubt(status: int, room: Engine) -> None:
    room.origin.faults = [] if status == 200 else [Fault(status=status)]
    assert (await send(room, "PUT", "/train/a.tar", b"new!"))[0] == status
    await room.get()
    asked = room.origin.count()
    await room.get()
    assert room.origin.count() == asked


async def test_a_forwarded_read_without_a_body_is_retried(room: Engine) -> None:
    room.origin.faults = [Fault(times=3, status=503)]
    assert (await send(room, "GET", "/train/a.tar?versionId=1"))[1] == b"old"
    assert room.origin.count("GET") == 4


async def test_an_empty_body_with_another_signed_hash_reaches_no_origin(room: Engine) -> None:
    payload = PayloadRule(PayloadForm.HASHED, "0" * 64)
    with pytest.raises(ContentSha256Mismatch):
        upload_of((), payload, None, source(), 0)


async def test_an_empty_body_is_verified_before_the_origin_has_its_head(room: Engine) -> None:
    payload = payload_of("STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    signer = Identity("key", payload, "0" * 64, b"signing key", "scope", "20270101T000000Z")
    body = b"0;chunk-signature=%s\r\n\r\n" % (b"0" * 64)
    upload = upload_of((("x-amz-decoded-content-length", "0"),), payload, signer, source(body), len(body))
    with pytest.raises(SignatureDoesNotMatch):
        await room.passthrough.send(classify("PUT", "/train/a.tar", ()), (), upload, None)
    assert room.origin.count("PUT") == 0


async def test_a_body_with_a_wrong_checksum_is_the_clients_error_and_nothing_is_stored(room: Engine) -> None:
    payload = PayloadRule(PayloadForm.HASHED, "0" * 64)
    upload = upload_of((), payload, None, source(b"ab", b"cd"), 4)
    with pytest.raises(ContentSha256Mismatch):
        await room.passthrough.send(classify("PUT", "/train/a.tar", ()), (), upload, None)
    assert room.origin.objects[REF].data == b"old"
