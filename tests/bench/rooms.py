"""`make trace`: the way of a request through the code. A room is a file of the product that is executed. A move is a
call into another room than that of the call before it. A there-and-back is a move that the next one takes back.

Real proxies run in this process, before a real bucket. Each request is traced after three of its kind; the shortest of
six traces counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import outrider
from tests.support.bucket import Bucket
from tests.support.child import free_ports
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from types import FrameType

KIB = 1024
NAME = "rooms"
_PRODUCT = str(Path(outrider.__file__).parent) + "/"
_WARM_UPS = 3
# The one with the fewest calls counts: the proxy's clock ticks amid some.
_TRACES = 6
# Timers of the requests before end within it: they would be counted.
_SETTLED_S = 0.1


@dataclass(slots=True)
class Way:
    """The executed part of the product. `calls`: of functions, each entry into a generator or coroutine included."""

    rooms: set[str] = field(default_factory=set)
    calls: int = 0
    moves: int = 0
    there_and_backs: int = 0


class Tracer:
    """Records the calls into the product on all threads that begin after `install`."""

    def __init__(self) -> None:
        self._is_on = False
        self._steps: defaultdict[int, list[str]] = defaultdict(list)

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._on_event)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._is_on or event != "call":
            return
        name = frame.f_code.co_filename
        if name.startswith(_PRODUCT):
            self._steps[threading.get_ident()].append(name)

    @contextmanager
    def recording(self) -> Iterator[Way]:
        """The way is complete at the end of the context."""
        self._steps.clear()
        way = Way()
        self._is_on = True
        try:
            yield way
        finally:
            self._is_on = False
        for steps in self._steps.values():
            way.calls += len(steps)
            path = [room for before, room in zip(["", *steps], steps, strict=False) if room != before]
            way.rooms.update(path)
            way.moves += len(path) - 1
            way.there_and_backs += sum(first == last for first, last in zip(path, path[2:], strict=False))


def traced(tracer: Tracer, proxies: list[Proxy], act: Callable[[int], None]) -> Way:
    """The way of `act`, which is given a number that no call had before."""
    for number in range(_WARM_UPS):
        act(number)
        for proxy in proxies:
            proxy.settle()
    found = []
    for number in range(_WARM_UPS, _WARM_UPS + _TRACES):
        for proxy in proxies:
            # The planner would learn of the hits before amid this one.
            while not proxy.on_loop(proxy.outrider.prefetch.tick):
                pass
            # The look at all parts, once a second, belongs to no request: it comes a second later.
            proxy.outrider.overview._last = time.monotonic()
        time.sleep(_SETTLED_S)
        for proxy in proxies:
            # Nor does the planner's bundle, of all events within 50 ms: it comes after this one, also where the machine
            # is busy. A row of its own has both.
            proxy.on_loop(partial(held, proxy))
        with tracer.recording() as way:
            act(number)
            for proxy in proxies:
                proxy.settle()
        for proxy in proxies:
            proxy.on_loop(partial(reported, proxy))
        found.append(way)
    return min(found, key=lambda way: way.calls)


def ways(bucket: Bucket) -> Iterator[tuple[str, Way]]:
    client = bucket.client()
    bucket.make_bucket(NAME)
    for kind, size in (("cold", 64 * KIB), ("peer", 64 * KIB), ("bundle", 64 * KIB), ("cold", 5 * KIB * KIB)):
        for number in range(_WARM_UPS + _TRACES):
            client.put_object(Bucket=NAME, Key=f"{kind}/{size}/{number}", Body=bytes(size))
    client.close()
    tracer = Tracer()
    with tracer.installed(), ExitStack() as stack:
        alone = stack.enter_context(Proxy(bucket))
        connection = stack.enter_context(RawConnection(alone.address))

        def get(key: str) -> None:
            assert connection.ask("GET", f"/{NAME}/{key}").status == 200

        yield "hot GET, 64 KiB", traced(tracer, [alone], lambda number: get(f"cold/{64 * KIB}/0"))
        for size, words in ((64 * KIB, "64 KiB"), (5 * KIB * KIB, "5 MiB")):
            yield f"cold GET, {words}", traced(
                tracer, [alone], lambda number, size=size: get(f"cold/{size}/{number}")  # type: ignore[misc]
            )  # fmt: skip
        yield (
            "cold GET, 64 KiB, and the planner's bundle",
            traced(tracer, [alone], lambda number: learn(alone, get, number)),
        )
        body = bytes(100_000)

        def put(number: int) -> None:
            headers = (("content-length", str(len(body))),)
            assert connection.ask("PUT", f"/{NAME}/put/{number}", headers, body).status == 200

        yield "PUT, 100 kB", traced(tracer, [alone], put)
    yield "prefetch decision, after a hit", decision(bucket, tracer)
    with tracer.installed(), ExitStack() as stack:
        nodes = members(bucket, stack)
        connections = [stack.enter_context(RawConnection(node.address)) for node in nodes]

        keys = [f"peer/{64 * KIB}/{number}" for number in range(_WARM_UPS + _TRACES)]
        owners = [index_of_owner(nodes, key) for key in keys]

        def by_peer(number: int) -> None:
            """The member that the block belongs to has it; the other one is asked."""
            other = connections[1 - owners[number]]
            assert other.ask("GET", f"/{NAME}/{keys[number]}").headers["x-cache"] == "PEER"

        for owner, key in zip(owners, keys, strict=True):
            assert connections[owner].ask("GET", f"/{NAME}/{key}").status == 200
        yield "block by a peer, 64 KiB, both nodes", traced(tracer, nodes, by_peer)


def decision(bucket: Bucket, tracer: Tracer) -> Way:
    with tracer.installed(), ExitStack() as stack:
        ahead = stack.enter_context(Proxy(bucket, prefetch="epoch"))
        its = stack.enter_context(RawConnection(ahead.address))
        names = [f"/{NAME}/cold/{64 * KIB}/{number}" for number in range(_WARM_UPS + _TRACES)]

        def decide(number: int) -> None:
            """A hit, and what the planner makes of it. All of its dataset is here, so that nothing is fetched."""
            assert its.ask("GET", names[number]).headers["x-cache"] == "HIT"
            ahead.on_loop(partial(reported, ahead))

        for name in names:
            assert its.ask("GET", name).status == 200
        ahead.settle()
        return traced(tracer, [ahead], decide)


async def held(proxy: Proxy) -> None:
    """No tick and no timer reports to the planner until `reported`."""

    async def idle() -> bool:
        return False

    prefetch = proxy.outrider.prefetch
    prefetch._events._due_at = 0.0
    prefetch.tick = idle  # type: ignore[method-assign]


async def reported(proxy: Proxy) -> None:
    """The planner has learned of all events and hits."""
    prefetch = proxy.outrider.prefetch
    prefetch.__dict__.pop("tick", None)
    while not await prefetch.tick():
        pass
    prefetch._events._report_bundle(prefetch._events._due_at)


def learn(alone: Proxy, get: Callable[[str], None], number: int) -> None:
    """A miss, and what the planner makes of it."""
    get(f"bundle/{64 * KIB}/{number}")
    alone.settle()
    alone.on_loop(partial(reported, alone))


def members(bucket: Bucket, stack: ExitStack) -> list[Proxy]:
    """Two members of a cluster, which have greeted each other."""
    ports = free_ports(2)
    nodes = []
    for number, port in enumerate(ports):
        proxy = Proxy(bucket, peer_name=f"node-{number}", peer_listen=f"127.0.0.1:{port}")
        directory = proxy.cache_dir.parent
        (directory / "key").write_text("k" * 64 + "\n")
        (directory / "key").chmod(0o600)
        lines = (f"127.0.0.1:{port} name=node-{number}\n" for number, port in enumerate(ports))
        (directory / "members").write_text("".join(lines))
        proxy.settings |= {"peers": f"file:{directory / 'members'}", "peer_key_file": str(directory / "key")}
        nodes.append(stack.enter_context(proxy))
    while not all(sum(m["state"] == "alive" for m in node.status()["cluster"]["members"]) == 2 for node in nodes):
        time.sleep(0.2)
    return nodes


def index_of_owner(nodes: list[Proxy], key: str) -> int:
    with urllib.request.urlopen(f"{nodes[0].admin}/cluster/who?object=s3://{NAME}/{key}", timeout=60) as answer:
        owner = json.load(answer)["owners"][0]["owners"][0]
    return int(owner.removeprefix("node-"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--rooms", action="store_true", help="name the rooms of each way")
    given = parser.parse_args()
    print("| way | rooms | calls | moves | there-and-backs |\n| --- | --- | --- | --- | --- |")
    found = {}
    with Bucket() as bucket:
        for name, way in ways(bucket):
            print(
                f"| {name} | {len(way.rooms)} | {way.calls:,} | {way.moves:,} | {way.there_and_backs:,} |", flush=True
            )
            rooms = sorted(room.removeprefix(_PRODUCT) for room in way.rooms)
            if given.rooms:
                print("", *rooms, sep="\n  ", file=sys.stderr)
            found[name] = {
                "rooms": rooms, "calls": way.calls, "moves": way.moves, "there_and_backs": way.there_and_backs,
            }  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
