"""Combinations of oddities of an origin, under short histories of requests: a client of the proxy gets what a direct
client gets, or an error, and never other bytes; and the origin is asked for no more than by direct clients."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import example, given, seed
from hypothesis import strategies as st

from outrider.adapters.process.system import new_event_loop
from tests.support.oddities import (
    AWS,
    Body,
    Checksum,
    ContentRange,
    ETag,
    HeadLength,
    IfMatch,
    Length,
    Oddities,
)
from tests.support.trials import SCALE, fuzzing
from tests.trust.odd_worlds import BLOCK, Ask, OddWorld, odd_world

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.trials import Trials

SEED = int(os.environ.get("OUTRIDER_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
"""The seed of a long run; `make test` has the same examples each time."""
KNOBS: tuple[tuple[str, Any], ...] = (
    ("range_status", 200), ("plain_status", 206), ("plain_status", 203), ("plain_content_range", True),
    *(("content_range", form) for form in ContentRange if form is not ContentRange.RIGHT),
    ("ignores_range", True), ("ignores_conditions", True),
    *(("if_match", form) for form in IfMatch if form is not IfMatch.HEEDED),
    ("checksum_mode", 400), ("checksum_mode", 501),
    *(("checksum", form) for form in Checksum if form is not Checksum.NONE),
    *(("head_status", status) for status in (403, 404, 405, 501)),
    *(("head_length", form) for form in HeadLength if form is not HeadLength.RIGHT),
    *(("length", form) for form in Length if form is not Length.STATED),
    *(("body", form) for form in Body if form is not Body.WHOLE),
    *(("etag", form) for form in ETag if form is not ETag.HEX),
    *(("lacks", frozenset({name})) for name in ("last-modified", "content-type", "date", "accept-ranges")),
    ("http_1_0", True), ("closes", True), ("hangs_up", True), ("content_encoding", "gzip"),
    ("content_encoding", "aws-chunked"), ("content_encoding", "identity"),
    ("more_headers", (("Vary", "Origin"),)), ("more_headers", (("x-amz-meta-a/b", "1"), ("x-amz-meta-(c)", "2"))),
    ("more_headers", (("Age", "17"), ("Cache-Control", "no-store"))),
)  # fmt: skip

oddities = st.lists(st.sampled_from(KNOBS), min_size=1, max_size=4, unique_by=lambda knob: knob[0]).map(
    lambda knobs: replace(AWS, **dict(knobs))
)
sizes = st.sampled_from((0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 5))
Test = TypeVar("Test", bound="Callable[..., None]")
KEYS = ("shards/a.tar", "shards/b.tar")
_OFFSETS = (0, 1, 999, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7, 3 * BLOCK + 4, 10**7)
_offset = st.sampled_from(_OFFSETS)
ranges = st.one_of(
    st.tuples(_offset, _offset).map(lambda pair: f"bytes={min(pair)}-{max(pair)}"),
    _offset.map(lambda first: f"bytes={first}-"),
    _offset.map(lambda count: f"bytes=-{count}"),
    st.sampled_from(("bytes=0-0", "bytes=0-", "bytes=5-2", "bytes=0-1,5-6", "items=0-1")),
)
header_sets = st.one_of(
    st.just({}), st.just({}), ranges.map(lambda value: {"range": value}), ranges.map(lambda value: {"range": value}),
    st.just({"x-amz-checksum-mode": "ENABLED"}), st.just({"if-match": "{etag}"}), st.just({"if-none-match": "{etag}"}),
    ranges.map(lambda value: {"range": value, "if-match": "{etag}"}), st.just({"if-match": '"other"'}),
)  # fmt: skip
keys = st.sampled_from((*KEYS, KEYS[0]))
reads = st.tuples(st.just("read"), st.sampled_from(("GET", "GET", "GET", "HEAD")), keys, header_sets)
events = st.one_of(
    reads, reads, reads, reads,
    st.tuples(st.just("pair"), reads, reads),
    st.tuples(st.just("put"), keys, st.one_of(st.none(), sizes)),
    st.tuples(st.just("renew"), keys),
    st.sampled_from((("expire",), ("expire",), ("mend",), ("spoil",))),
)  # fmt: skip
histories = st.lists(events, min_size=1, max_size=10)


@pytest.fixture(scope="module")
def run() -> Any:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield runner.run


def as_ask(world: OddWorld, method: str, key: str, headers: dict[str, str]) -> Ask:
    if method == "HEAD" and headers.get("range") == "bytes=0-0":
        # It asks the proxy to fetch the whole object.
        headers = {}
    etag = world.etags.get(key, '"unknown"')
    return Ask(method, key, tuple((name, value.replace("{etag}", etag)) for name, value in headers.items()))


async def lived(trials: Trials, odd: Oddities, freshness: str, first: tuple[int, int], history: list[Any]) -> None:
    async with odd_world(odd, freshness) as world:
        for key, size in zip(KEYS, first, strict=True):
            world.put(key, size)
        for event in history:
            match event:
                case ("read", method, key, headers):
                    await world.ask(as_ask(world, method, key, headers))
                case ("pair", one, other):
                    await world.ask_at_once([as_ask(world, *one[1:]), as_ask(world, *other[1:])])
                case ("put", key, size):
                    world.put(key, size)
                case ("renew", key):
                    world.put(key)
                    world.expire()
                case (name,):
                    getattr(world, name)()
        await world.last()
        trials.record("odd origins", f"a combination of oddities; seed {SEED}", "nothing wrong was kept")
        for saw, times in world.saw.items():
            trials.record("odd origins", f"a request in one of them; seed {SEED}", saw, times=times)


def seeded(test: Test) -> Test:
    """A seed would win over `derandomize`."""
    return seed(SEED)(test) if SCALE > 1 else test


HISTORY: list[Any] = [
    ("read", "GET", KEYS[0], {}), ("read", "GET", KEYS[0], {"range": f"bytes={BLOCK + 1}-{2 * BLOCK + 7}"}),
    ("read", "HEAD", KEYS[1], {}), ("put", KEYS[0], None), ("expire",),
    ("read", "GET", KEYS[0], {"range": f"bytes={BLOCK}-"}), ("read", "GET", KEYS[0], {}),
    ("read", "GET", KEYS[1], {"x-amz-checksum-mode": "ENABLED"}), ("read", "GET", KEYS[1], {"if-match": "{etag}"}),
]  # fmt: skip


def each_alone(test: Test) -> Test:
    """Each oddity by itself is tried, whatever is drawn."""
    for name, value in KNOBS:
        test = example(replace(AWS, **{name: value}), "ttl:60", (3 * BLOCK + 5, 1000), HISTORY)(test)
    return test


@pytest.mark.timeout(300 * SCALE)
@seeded
@each_alone
@example(
    # Between two replies that prove nothing the connection breaks.
    replace(AWS, content_range=ContentRange.NO_TOTAL, plain_content_range=True, range_status=200, hangs_up=True),
    "ttl:60", (1, 0), [("read", "GET", KEYS[0], {"if-none-match": "{etag}"})],
)  # fmt: skip
@example(
    # A whole object in place of a part, whose Content-Range says so: no answer has to be cut for it.
    replace(AWS, plain_content_range=True, ignores_range=True), "ttl:60", (BLOCK + 1, 0),
    [("read", "GET", KEYS[0], {}), ("renew", KEYS[0]), ("read", "GET", KEYS[0], {})],
)  # fmt: skip
@example(
    replace(AWS, plain_content_range=True, plain_status=206, ignores_range=True), "ttl:60", (BLOCK + 1, 0),
    [("read", "GET", KEYS[0], {}), ("renew", KEYS[0]), ("read", "GET", KEYS[0], {})],
)  # fmt: skip
@given(oddities, st.sampled_from(("ttl:60", "always")), st.tuples(sizes, sizes), histories)
@fuzzing(20, of=350)
def test_a_client_of_the_proxy_gets_what_a_direct_client_gets_or_an_error(
    run: Callable[[Any], None], trials: Trials, odd: Oddities, freshness: str, first: tuple[int, int],
    history: list[Any],
) -> None:  # fmt: skip
    """The right bytes are those of a version that was current within the time to live. Any other reply is an error, a
    connection that breaks visibly, or byte for byte the reply that a direct client gets. An error where a direct
    client gets the right bytes may happen once in a history, and the same request must then succeed. At the end the
    origin is mended: a wrong byte that was kept would show now.

    The origin sends at most 1.1 times the bytes that direct clients fetch, with each Range rounded to blocks, and two
    blocks for each object and each failed read, six blocks once to learn of the oddity, and an error document for each
    request. Where direct clients get broken
    or forged replies, it sends at most six times as much, as each is tried again. Requests are bounded alike: one for
    each block, and two for each request of a client.
    """
    run(lived(trials, odd, freshness, first, history))
