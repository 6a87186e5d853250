"""Discovery of a dataset's objects at the origin: by a LIST, or by HEADs of numbered names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.core.model import ObjectRef
from tests.support.engine import BLOCK, Engine, engine, taken
from tests.support.fakes import FakeOrigin, Fault, ramp

CLIENT = "10.0.0.1"
SMALL, COUNT = 500, 40
REFS = [ObjectRef("train", f"{number:06d}.bin") for number in range(COUNT)]
NO_LIST = Fault(times=None, method="GET", key="", status=403)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    origin = FakeOrigin()
    for number, ref in enumerate(REFS):
        origin.put(ref, ramp(SMALL, number))
    with engine(tmp_path / "c", origin, policy="epoch") as room:
        yield room


async def read(room: Engine, *numbers: int) -> None:
    for number in numbers:
        ref = REFS[number]
        answer = await room.reads.get(
            ref, {}, lambda version, extent: room.prefetch.requested(CLIENT, version, extent, checksums=False)
        )
        assert await taken(answer) == ramp(SMALL, number)
        room.prefetch.sent(CLIENT, ref)
    await room.tasks.settle()


def lists(room: Engine) -> int:
    return sum(request.key == "" for request in room.origin.log)


def heads(room: Engine) -> int:
    return room.origin.count("HEAD")


async def test_small_objects_with_numbered_names_are_found_by_a_few_heads_and_prefetched(room: Engine) -> None:
    await read(room, 20, 7, 38, 3)
    assert all(map(room.fills.is_cached, REFS))
    assert lists(room) == 0
    assert 8 < heads(room) < 32
    assert not room.tasks.failures


async def test_no_name_is_probed_twice(room: Engine) -> None:
    await read(room, 0, 1, 2)
    asked = [request.key for request in room.origin.log if request.method == "HEAD"]
    assert 8 < len(asked) == len(set(asked))


@pytest.mark.parametrize("missing", [403, 404])
async def test_numbered_names_are_found_where_missing_objects_are_forbidden(missing: int, room: Engine) -> None:
    """S3 answers 403 for a missing object if the client has no right to LIST."""
    beyond = [Fault(times=None, key=f"{number:06d}.bin", status=missing) for number in range(COUNT, 2 * COUNT)]
    room.origin.faults += [NO_LIST, *beyond]
    await read(room, 20, 7, 38, 3)
    assert all(map(room.fills.is_cached, REFS))


@pytest.mark.parametrize("fault", [
    Fault(times=None, method="HEAD", status=503),
    Fault(times=None, method="HEAD", refuse=True),
    Fault(times=None, method="HEAD", status=403),
])  # fmt: skip
async def test_failed_heads_are_followed_by_a_list(fault: Fault, room: Engine) -> None:
    room.origin.faults.append(fault)
    await read(room, 20, 7, 38, 3)
    assert lists(room) == 1
    await read(room, 21, 22, 23)
    assert lists(room) == 1
    assert not room.tasks.failures


async def test_a_missing_object_costs_one_request_and_then_a_list(room: Engine) -> None:
    room.origin.delete(REFS[32])
    await read(room, 30, 7, 38, 3)
    asked = [request.key for request in room.origin.log if request.method == "GET"]
    assert asked.count(REFS[32].key) == 1
    assert lists(room) == 1
    assert all(room.fills.is_cached(ref) for ref in REFS if ref != REFS[32])
    await read(room, 31)
    assert lists(room) == 1


async def test_empty_objects_are_not_missing(room: Engine) -> None:
    """The labels of empty pictures are such objects."""
    room.origin.faults.append(NO_LIST)
    for ref in REFS[4:34:2]:
        room.origin.put(ref, b"")
    await read(room, 35, 7, 38, 3, 1)
    assert all(room.fills.is_cached(ref) for ref in (*REFS[:4], *REFS[5:34:2], *REFS[34:]))
    [dataset] = room.planner.registry.datasets()
    assert dataset.discovery.is_numbered


async def test_a_list_that_is_refused_after_its_first_page_has_failed(tmp_path: Path) -> None:
    """The LIST was allowed at first. The usual cause is a key that has expired meanwhile."""
    first = (f"<Contents><Key>{ref.key}</Key><Size>{BLOCK}</Size></Contents>" for ref in REFS[:6])
    page = f"<ListBucketResult><IsTruncated>true</IsTruncated>{''.join(first)}<NextContinuationToken>more"
    page += "</NextContinuationToken></ListBucketResult>"
    origin = FakeOrigin(faults=[Fault(key="", status=200, body=page.encode()), NO_LIST])
    for ref in REFS:
        origin.put(ref, bytes(BLOCK))
    with engine(tmp_path / "c", origin, policy="epoch") as room:
        for number in range(10, 18):
            await taken(
                await room.reads.get(
                    REFS[number], {},
                    lambda version, extent: room.prefetch.requested(CLIENT, version, extent, checksums=False),
                )
            )  # fmt: skip
            room.prefetch.sent(CLIENT, REFS[number])
            await room.tasks.settle()
            room.clock.advance(20.0)
        assert lists(room) == 3, "two pages, and a retry after a minute"
