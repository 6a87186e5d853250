"""Origins whose replies are not AWS's, one oddity at a time: the right bytes come, they are kept where the reply proves
them, and the origin is not asked for much more than by clients without a proxy.

`tests/engine/read/odd_replies` has the oddities of single replies: statuses, Content-Ranges, ETags, dates and refusals.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.child import Child, clean_environment, free_ports, program
from tests.support.control_bucket import put, wait_for_end
from tests.support.fakes import no_wait_patience, ramp
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import AWS, Body, Checksum, ETag, HeadLength, IfMatch, Length, Oddities
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection, ask
from tests.trust.odd_worlds import BLOCK, MORE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

    WorldOf = Callable[..., "World"]

_RCLONE_KEY = "key,secret"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
RAMP = ramp(5 * BLOCK + 1234)
PLACE, SMALL = "/train/shards/a.tar", "/train/shards/small"


class World:
    """A proxy before an odd origin that has two objects: `PLACE` of several blocks, and `SMALL`."""

    def __init__(self, origin: OddOrigin, proxy: Proxy) -> None:
        self.origin = origin
        self.proxy = proxy
        origin.put("train", "shards/a.tar", RAMP)
        origin.put("train", "shards/small", RAMP[:1000])

    def ask(self, method: str, target: str, **headers: str) -> Answer:
        """The answer, once all is settled that it began."""
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        answer = ask(self.proxy.address, method, target, named)
        self.proxy.settle()
        return answer

    def get(self, target: str = PLACE, **headers: str) -> Answer:
        return self.ask("GET", target, **headers)

    def reads(self, target: str = PLACE, body: bytes = RAMP, **headers: str) -> str:
        """The `x-cache` of a read that must bring the whole of `body`."""
        answer = self.get(target, **headers)
        assert (answer.status, answer.body == body) == (200, True), (answer.status, len(answer.body))
        return answer.headers["x-cache"]

    def range(self, start: int, stop: int, target: str = PLACE, body: bytes = RAMP) -> Answer:
        """The answer to a Range, which must bring exactly its bytes."""
        answer = self.get(target, range=f"bytes={start}-{stop - 1}")
        assert answer.status in (200, 206)
        assert answer.body == body[start:stop], (answer.status, len(answer.body))
        return answer

    @contextmanager
    def traffic(self, direct_bytes: int) -> Iterator[None]:
        """Within it, the origin sends at most `MORE` times the bytes that it sends without a proxy."""
        before = self.origin.sent_bytes
        yield
        assert self.origin.sent_bytes - before <= MORE * direct_bytes


@pytest.fixture
def world_of(bucket: Bucket) -> Iterator[WorldOf]:
    """A world with these oddities; `settings` are those of the proxy."""
    with ExitStack() as stack:

        def build(oddities: Oddities = AWS, **settings: Any) -> World:
            origin = stack.enter_context(OddOrigin(oddities).on_thread())
            given = {"block_size": str(BLOCK), "patience": no_wait_patience(), **settings}
            proxy = stack.enter_context(Proxy(bucket, origin.endpoint, environment=KEYS, **given))
            return World(origin, proxy)

        yield build


def test_an_origin_without_oddities_is_read_once(world_of: WorldOf) -> None:
    world = world_of()
    with world.traffic(len(RAMP)):
        assert [world.reads() for _ in range(3)] == ["MISS", "HIT", "HIT"]
        world.range(1, 100)


# -- a real one --------------------------------------------------------------------------------------------------------


@pytest.fixture
def rclone(bucket: Bucket, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy before the real `rclone serve s3`, which serves a directory."""
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "a.tar").write_bytes(RAMP)
    port = free_ports(1)[0]
    child = Child(
        [program("rclone"), "serve", "s3", tmp_path / "data", "--addr", f"127.0.0.1:{port}", "--auth-key", _RCLONE_KEY],
        log=tmp_path / "log", env={**clean_environment(), "RCLONE_CONFIG": "/dev/null"},
    )  # fmt: skip

    def answers() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/").close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    try:
        child.wait_until(answers, what="rclone", deadline_s=60.0)
        with Proxy(bucket, f"http://127.0.0.1:{port}", environment=KEYS, block_size=str(BLOCK)) as proxy:
            yield proxy
    finally:
        child.stop()


def test_rclone_is_read_whole_and_kept(rclone: Proxy) -> None:
    for cache in ("MISS", "HIT"):
        answer = ask(rclone.address, "GET", "/train/a.tar")
        rclone.settle()
        assert (answer.status, answer.body == RAMP, answer.headers["x-cache"]) == (200, True, cache)
    assert rclone.metric("outrider_origin_bytes_total") <= MORE * len(RAMP)


def test_rclone_is_read_in_ranges(rclone: Proxy) -> None:
    for start, stop in ((BLOCK, BLOCK + 100), (3 * BLOCK - 50, 3 * BLOCK + 50), (len(RAMP) - 10, len(RAMP)), (0, 10)):
        answer = ask(rclone.address, "GET", "/train/a.tar", [("range", f"bytes={start}-{stop - 1}")])
        assert (answer.status, answer.body) == (206, RAMP[start:stop])


def whole_or_none(address: tuple[str, int], target: str = PLACE) -> bytes | None:
    """The body of a GET; None: it was refused, or visibly broken."""
    try:
        answer = ask(address, "GET", target)
    except (http.client.HTTPException, OSError):
        return None
    return answer.body if answer.status == 200 else None


# -- requests that the origin refuses, and the client never sent -------------------------------------------------------


@pytest.mark.parametrize("status", [400, 501])
def test_a_client_that_asks_for_checksums_itself_gets_the_bytes_or_the_refusal(world_of: WorldOf, status: int) -> None:
    world = world_of(Oddities(checksum_mode=status))
    for method in ("GET", "HEAD", "GET"):
        answer = world.ask(method, PLACE, x_amz_checksum_mode="ENABLED")
        assert answer.status in (200, status)
        assert answer.status == status or method == "HEAD" or answer.body == RAMP


def test_a_checksum_of_the_parts_of_an_upload_cuts_no_reader(world_of: WorldOf) -> None:
    world = world_of(Oddities(etag=ETag.MULTIPART, checksum=Checksum.OF_PARTS))
    for _ in range(2):
        world.reads(SMALL, RAMP[:1000])
        assert world.ask("HEAD", PLACE).status == 200
        world.range(0, 3 * BLOCK)
        world.range(3 * BLOCK, len(RAMP))
        world.reads()
    assert world.reads() == "HIT"
    assert world.proxy.metric("outrider_origin_mismatches_total") == 0


@pytest.mark.parametrize("if_match", [IfMatch.REFUSED, IfMatch.FAILS, IfMatch.IGNORED])
def test_without_if_match_no_reply_mixes_two_versions(world_of: WorldOf, if_match: IfMatch) -> None:
    world = world_of(Oddities(if_match=if_match))
    old, new = RAMP, bytes(reversed(RAMP))
    world.range(0, 10)
    world.origin.put("train", "shards/a.tar", new)
    answer = whole_or_none(world.proxy.address)
    assert answer in (None, old, new)
    world.proxy.settle()
    assert whole_or_none(world.proxy.address) == new


# -- HEADs that state too little ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("freshness", ["ttl:60", "always"])
def test_a_head_that_states_a_length_of_zero_is_not_believed(world_of: WorldOf, freshness: str) -> None:
    world = world_of(Oddities(head_length=HeadLength.ZERO), freshness=freshness)
    assert world.ask("HEAD", PLACE).status == 200
    for _ in range(2):
        world.reads()
    with world.traffic(BLOCK):
        world.reads()


def test_an_empty_object_is_kept(world_of: WorldOf) -> None:
    world = world_of()
    world.origin.put("train", "empty", b"")
    for method in ("HEAD", "GET", "HEAD", "GET"):
        assert world.ask(method, "/train/empty").status == 200
    assert world.reads("/train/empty", b"") == "HIT"


def test_an_empty_object_of_which_nothing_is_stated_is_not_asked_about_at_each_read(world_of: WorldOf) -> None:
    world = world_of(Oddities(checksum_mode=400, head_status=405))
    world.origin.put("train", "empty", b"")
    world.reads("/train/empty", b"")
    before = len(world.origin.seen)
    for _ in range(3):
        assert world.reads("/train/empty", b"") == "BYPASS"
    assert len(world.origin.seen) - before == 3


# -- framing, and bodies that do not keep their word -------------------------------------------------------------------


@pytest.mark.parametrize(
    "oddities",
    [
        Oddities(length=Length.CHUNKED), Oddities(length=Length.UNTIL_CLOSE), Oddities(http_1_0=True),
        Oddities(closes=True), Oddities(plain_status=203),
        Oddities(plain_status=206, plain_content_range=True),
        Oddities(plain_content_range=True), Oddities(lacks=frozenset({"last-modified", "content-type", "date"})),
        Oddities(head_length=HeadLength.MISSING, length=Length.CHUNKED), Oddities(content_encoding="gzip"),
    ],
    ids=str,
)  # fmt: skip
def test_odd_framing_loses_no_byte(world_of: WorldOf, oddities: Oddities) -> None:
    world = world_of(oddities)
    with world.traffic(2 * len(RAMP)):
        for _ in range(2):
            answer = world.get()
            assert answer.status // 100 == 2
            assert answer.body == RAMP
    world.range(BLOCK - 5, BLOCK + 5)


def test_a_status_that_no_store_sends_is_no_refusal(world_of: WorldOf) -> None:
    """The body of a refusal may be cut."""
    world = world_of(Oddities(plain_status=203, ignores_range=True))
    assert world.ask("HEAD", PLACE).status == 200
    for _ in range(2):
        answer = world.get()
        assert answer.status // 100 == 2
        assert answer.body == RAMP


@pytest.mark.parametrize("body", [Body.CUT, Body.SHORT])
@pytest.mark.parametrize("length", [Length.STATED, Length.CHUNKED])
def test_a_body_that_is_too_short_never_passes_for_the_whole(world_of: WorldOf, body: Body, length: Length) -> None:
    """With `SHORT` a direct client takes the half for the whole. It may be relayed, but never kept."""
    odd = Oddities(body=body, length=length)
    world = world_of(odd)
    for target, data in ((PLACE, RAMP), (SMALL, RAMP[:1000])):
        assert world.ask("HEAD", target).status == 200
        relayed = [data[: len(data) // 2]] if body is Body.SHORT else []
        assert whole_or_none(world.proxy.address, target) in (None, data, *relayed)
        world.proxy.settle()
        world.origin.oddities = AWS
        assert whole_or_none(world.proxy.address, target) == data
        world.proxy.settle()
        world.origin.oddities = odd


# -- header names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x-amz-meta-a/b", "x-amz-meta-(c)", "x-amz-meta-d@e", "x-amz-meta-f[g]"])
def test_a_header_whose_name_is_no_token_does_not_stop_a_read(world_of: WorldOf, name: str) -> None:
    world = world_of(Oddities(more_headers=((name, "value"),)))
    with world.traffic(len(RAMP)), RawConnection(world.proxy.address) as connection:
        for method in ("HEAD", "GET", "GET"):
            connection.send(f"{method} {PLACE} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            answer = connection.read_answer(method)
            world.proxy.settle()
            assert answer.status == 200
            assert answer.body == (RAMP if method == "GET" else b"")


# -- LIST --------------------------------------------------------------------------------------------------------------


def warmed(world: World, names: list[str]) -> dict[str, Any]:
    """The result of warming a prefix with these objects."""
    for number, name in enumerate(names):
        world.origin.put("train", f"set/{name}", RAMP[number : number + 1000])
    s3 = world.proxy.client()
    put(s3, "warm/set", "s3://train/set/")
    return wait_for_end(s3, "warm/set")


def test_a_warmup_of_a_list_that_stops_short_warms_all_or_is_not_done(world_of: WorldOf) -> None:
    world = world_of(Oddities(list_without_token=True, list_page=2))
    names = [f"shard-{number}" for number in range(5)]
    state = warmed(world, names)
    if state["state"] == "done":
        assert state["objects"]["on_disk"] == len(names)
        assert world.reads("/train/set/shard-4", RAMP[4:1004]) == "HIT"


def test_a_warmup_asks_for_the_keys_that_a_list_shows_unencoded(world_of: WorldOf) -> None:
    world = world_of(Oddities(list_ignores_encoding=True))
    state = warmed(world, ["a+b", "c%20d", "plain"])
    assert (state["state"], state["objects"]["on_disk"], state["objects"]["failed"]) == ("done", 3, 0)
    assert world.reads("/train/set/a%2Bb", RAMP[:1000]) == "HIT"
    assert world.reads("/train/set/c%2520d", RAMP[1:1001]) == "HIT"
