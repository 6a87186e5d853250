"""When a cached object is looked up again at the origin: immutable, a time to live, always, and stale-if-error."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.errors import ServiceUnavailable
from outrider.core.model import ObjectRef
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.version_answers import NotCacheable
from tests.engine.read.five_blocks import DATA, OTHER, SIZE
from tests.support.engine import REF, engine, taken
from tests.support.fakes import Fault

pytestmark = pytest.mark.one_python


async def test_freshness_immutable_never_revalidates(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="immutable") as room:
        room.origin.put(REF, b"first")
        assert await room.get() == b"first"
        room.origin.put(REF, b"second")
        room.clock.advance(1e9)
        assert await room.get() == b"first"
        assert room.origin.count() == 1


async def test_new_headers_of_the_same_bytes_are_served_once_the_ttl_ran_out(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="ttl:60") as room:
        room.origin.put(REF, DATA, (("content-type", "text/plain"),))
        await room.get()
        room.origin.put(REF, DATA, (("content-type", "text/html"),))
        room.clock.advance(61)
        answer = await room.reads.get(REF, {})
        assert dict(answer.headers)["content-type"] == "text/html"
        await taken(answer)


async def test_an_object_is_revalidated_after_its_ttl_and_keeps_its_blocks_if_unchanged(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="ttl:60") as room:
        room.origin.put(REF, DATA)
        assert await room.get() == DATA
        await room.tasks.settle()
        asked, bytes_before = room.origin.count(), room.origin.body_bytes
        room.clock.advance(59)
        assert await room.get() == DATA
        assert room.origin.count() == asked
        room.clock.advance(2)
        assert await room.get() == DATA
        assert room.origin.count() == asked + 1
        assert room.origin.log[-1].method == "HEAD"
        assert room.origin.body_bytes == bytes_before
        room.origin.put(REF, OTHER)
        assert await room.get() == DATA
        room.clock.advance(61)
        assert await room.get() == OTHER
        await room.tasks.settle()


async def test_freshness_always_revalidates_on_every_request(tmp_path: Path) -> None:
    with engine(tmp_path / "c", freshness="always") as room:
        room.origin.put(REF, b"first")
        assert await room.get() == b"first"
        room.origin.put(REF, b"second")
        assert await room.get() == b"second"
        room.origin.delete(REF)
        with pytest.raises(NotCacheable):  # a HEAD found it gone; the origin says so to the GET itself
            await room.get()


@pytest.mark.parametrize("fault", [Fault(times=None, refuse=True), Fault(times=None, status=503)])
async def test_stale_if_error_serves_cached_blocks_while_the_origin_is_down(fault: Fault, tmp_path: Path) -> None:
    with engine(tmp_path / "c", stale_if_error=True) as room:
        room.origin.put(REF, DATA)
        await room.get()
        await room.tasks.settle()
        room.clock.advance(61)
        room.origin.faults = [fault]
        assert await room.get() == DATA
        assert (await room.reads.head(REF, {})).length == SIZE
        with pytest.raises((ServiceUnavailable, OriginRefused)):
            await room.get(ObjectRef("train", "never seen"))
        # An object that was written through us is doubtful, not stale.
        room.versions.forget(REF)
        with pytest.raises((ServiceUnavailable, OriginRefused)):
            await room.get()
        room.origin.faults = []
        room.origin.delete(REF)
        with pytest.raises(OriginRefused):
            await room.get()
        await room.tasks.settle()


async def test_without_stale_if_error_an_origin_that_is_down_is_an_error(tmp_path: Path) -> None:
    with engine(tmp_path / "c") as room:
        room.origin.put(REF, b"x")
        await room.get()
        room.clock.advance(61)
        room.origin.faults = [Fault(times=None, refuse=True)]
        with pytest.raises(ServiceUnavailable):
            await room.get()
        await room.tasks.settle()
