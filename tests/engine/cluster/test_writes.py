"""A write through one member is known to all others before its client has the answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.core.model import Headers
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.operation import classify
from outrider.engine.write.upload import Upload, upload_of
from outrider.ports import OriginRequest
from tests.support.engine import REF
from tests.support.fakes import RAMP, Fault
from tests.support.members import Cluster, Node, cluster, timed_cluster


async def known_to_all(nodes: Cluster) -> None:
    """The members meet, and each reads the object."""
    nodes.origin.put(REF, RAMP[:1000])
    await nodes.meet()
    for node in nodes:
        await node.get()
    await nodes.settle()


async def write(
    node: Node, method: str, target: str = "/train/a.tar", body: bytes | None = None, headers: Headers = ()
) -> bytes:
    async def source() -> object:
        yield body

    upload = Upload() if body is None else upload_of((), UNSIGNED, None, source(), len(body))  # type: ignore[arg-type]
    answer = await node.engine.passthrough.send(classify(method, target, headers), headers, upload, None)
    answered = b"".join([chunk async for chunk in answer.body])
    await answer.body.aclose()
    return answered


@pytest.mark.parametrize("freshness", ["immutable", "ttl:60"])
async def test_a_get_through_any_node_after_a_put_returns_the_new_object(freshness: str, tmp_path: Path) -> None:
    with cluster(tmp_path, freshness=freshness) as nodes:
        nodes.origin.put(REF, RAMP[:1000])
        await nodes.meet()
        for writer in nodes:
            for node in nodes:
                await node.get()
            await nodes.settle()
            new = RAMP[ord(writer.name) :][:2000]
            await write(writer, "PUT", body=new)
            assert [await node.get() for node in nodes] == [new] * 3
            await nodes.settle()
            nodes.clock.advance(1)


async def test_a_key_that_the_origin_unpacks_from_an_archive_is_new_on_every_node(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        await known_to_all(nodes)
        nodes.clock.advance(5)

        def unpack(_: OriginRequest) -> None:
            nodes.origin.put(REF, RAMP[7:2007])

        nodes.origin.on_write = unpack
        await write(nodes["a"], "PUT", "/train/batch.tar", b"tar", (("x-amz-meta-snowball-auto-extract", "true"),))
        assert [await node.get() for node in nodes] == [RAMP[7:2007]] * 3
        await nodes.settle()


async def test_an_answer_from_before_the_write_that_comes_after_it_is_not_believed(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        nodes.origin.put(REF, RAMP[:1000])
        await nodes.meet()
        owner, (edge, writer) = nodes.owner_of(), nodes.others_of()
        await owner.get()
        await nodes.settle()
        nodes.clock.advance(5)
        # The owner does not learn of the write, and goes on believing the old version.
        for node in (edge, writer):
            node.wire.services = {edge.address: edge.service} if node is writer else node.wire.services
        await write(writer, "PUT", body=RAMP[:2000])
        nodes.clock.advance(5)
        assert await edge.get() == RAMP[:2000]
        await nodes.settle()


async def test_the_members_are_notified_of_a_write_before_it_is_sent_and_before_its_last_byte(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        await nodes.meet()
        writer = nodes["a"]
        recorded: list[tuple[str, int]] = []
        nodes.origin.on_write = lambda request: recorded.append(("sent", len(writer.wire.forgets)))
        await write(writer, "PUT", body=b"new")
        assert recorded == [("sent", 2)]
        assert len(writer.wire.forgets) == 4
        writer.wire.forgets.clear()
        nodes.origin.faults.append(Fault(method="POST", status=200, body=b"<CompleteMultipartUploadResult/>"))
        await write(writer, "POST", "/train/a.tar?uploadId=1", b"<CompleteMultipartUpload/>")
        assert len(writer.wire.forgets) == 6


async def test_members_that_had_the_first_message_see_a_write_whose_node_ends_before_the_second(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        await known_to_all(nodes)
        writer, *others = nodes

        def ends(_: OriginRequest) -> None:
            writer.wire.services = {}

        nodes.origin.on_write = ends
        await write(writer, "PUT", body=RAMP[:2000])
        assert [await node.get() for node in others] == [RAMP[:2000]] * 2
        await nodes.settle()


async def test_a_member_that_says_nothing_holds_a_write_up_for_a_moment(tmp_path: Path) -> None:
    with timed_cluster(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        nodes["a"].wire.silent.add("b:9482")
        began = time()
        await time.run(write(nodes["a"], "PUT", body=b"new"))
        assert time() - began == pytest.approx(2 * 0.25)
        await time.run(nodes.settle())
        assert nodes["a"].engine.metrics.value("outrider_peer_forgets_total", result="unacknowledged") == 2
        assert nodes["a"].engine.metrics.value("outrider_peer_forgets_total", result="acknowledged") == 2


async def test_a_member_that_missed_a_write_asks_about_everything_once_it_learns_of_the_gap(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        await known_to_all(nodes)
        cut_off, writer = nodes["a"], nodes["b"]
        # A partition, of which both sides know.
        for node, other in ((writer, cut_off), (cut_off, writer)):
            node.membership.unanswered(other.address, nodes.clock())
        await write(writer, "PUT", body=RAMP[:2000])
        assert await cut_off.get() == RAMP[:1000]
        nodes.clock.advance(5)
        await writer.greet(cut_off.address)
        nodes.clock.advance(1)
        await nodes.settle()
        assert await cut_off.get() == RAMP[:2000]
        await nodes.settle()


async def test_a_member_that_doubts_all_versions_asks_the_bucket_for_no_bytes(tmp_path: Path) -> None:
    """As one that has just begun: it cannot know which writes it missed. Other members have the bytes."""
    with cluster(tmp_path, freshness="immutable") as nodes:
        nodes.origin.put(REF, RAMP[:1000])
        await nodes.meet()
        owner, (edge, late) = nodes.owner_of(), nodes.others_of()
        await owner.get()
        await nodes.settle()
        for node in (edge, late):
            node.engine.versions.forget_all()
        asked, came = nodes.origin.count(), nodes.origin.body_bytes
        assert await edge.get() == RAMP[:1000]
        assert (nodes.origin.count() - asked, nodes.origin.body_bytes - came) == (1, 0)
        nodes.origin.put(REF, RAMP[:2000])
        assert await late.get() == RAMP[:2000]
        await nodes.settle()


async def test_a_new_process_of_a_member_may_have_written_what_nobody_knows_of(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        nodes.origin.put(REF, RAMP[:1000])
        await nodes.meet()
        reader, other = nodes["a"], nodes["b"]
        await reader.get()
        await nodes.settle()
        nodes.origin.put(REF, RAMP[:2000])
        other.begin_anew()
        reader.members.met(other.members.mine())
        assert await reader.get() == RAMP[:2000]
        await nodes.settle()


async def test_a_write_without_an_answer_is_in_doubt_everywhere(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        await known_to_all(nodes)
        nodes.origin.faults.append(Fault(method="PUT", refuse=True))
        with pytest.raises(Exception, match="does not answer"):
            await write(nodes["a"], "PUT", body=RAMP[:2000])
        nodes.clock.advance(10)
        for node in nodes:
            await node.get()
        await nodes.settle()
        # The origin carries it out after all.
        nodes.origin.put(REF, RAMP[:2000])
        assert [await node.get() for node in nodes] == [RAMP[:2000]] * 3
        await nodes.settle()


async def test_a_member_that_still_reads_its_index_is_notified_of_writes(tmp_path: Path) -> None:
    """It serves clients, too."""
    with cluster(tmp_path, freshness="immutable") as nodes:
        nodes.origin.put(REF, RAMP[:1000])
        late, writer = nodes["a"], nodes["b"]
        for node in nodes:
            if node is not late:
                node.members.ready()
        for node in nodes:
            await node.list([*nodes.nodes])
        await nodes.settle()
        nodes.clock.advance(0.1)
        assert await late.get() == RAMP[:1000]
        await nodes.settle()
        await write(writer, "PUT", body=RAMP[:2000])
        assert await late.get() == RAMP[:2000]
        await nodes.settle()


async def test_a_copy_whose_client_leaves_is_in_doubt_everywhere(tmp_path: Path) -> None:
    with cluster(tmp_path, freshness="immutable") as nodes:
        nodes.origin.put(REF, RAMP[:1000])
        await nodes.meet()
        writer = nodes["a"]
        never = asyncio.Event()
        reply = b" " * 8 + b"<CompleteMultipartUploadResult/>"
        nodes.origin.faults.append(Fault(method="POST", status=200, body=reply, body_gate=never, gate_after=8))
        target = classify("POST", "/train/a.tar?uploadId=1", ())
        answer = await writer.engine.passthrough.send(target, (), Upload(), None)
        waits = asyncio.ensure_future(anext(answer.body))
        for _ in range(10):
            await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await answer.body.aclose()
        await nodes.settle()
        assert [await node.get() for node in nodes] == [RAMP[:1000]] * 3
        await nodes.settle()
        nodes.origin.put(REF, RAMP[:2000])
        assert [await node.get() for node in nodes] == [RAMP[:2000]] * 3
        await nodes.settle()
