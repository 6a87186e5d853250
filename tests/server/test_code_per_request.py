"""The way of a request through the code does not grow unseen."""

from __future__ import annotations

from tests.bench import rooms
from tests.support.bucket import Bucket

# How many files of the product a request goes through, and how many calls, with a tenth of room. `make trace` prints
# some less: under pytest each line of the access log is a record. The pieces of a large body are as TCP cuts them, each
# some 35 calls: two or three on a quiet machine, six or seven amid other tests.
CEILINGS = {
    "hot GET, 64 KiB": (15, 30),
    "cold GET, 64 KiB": (73, 550),
    "cold GET, 5 MiB": (84, 1300),
    "cold GET, 64 KiB, and the planner's bundle": (95, 760),
    "PUT, 100 kB": (51, 295),
    "prefetch decision, after a hit": (63, 355),
    "block by a peer, 64 KiB, both nodes": (104, 1050),
}


def test_no_request_takes_a_longer_way_than_it_did(bucket: Bucket) -> None:
    found = {name: (len(way.rooms), way.calls) for name, way in rooms.ways(bucket)}
    assert found.keys() == CEILINGS.keys()
    assert {name: way for name, way in found.items() if way[0] > CEILINGS[name][0] or way[1] > CEILINGS[name][1]} == {}
