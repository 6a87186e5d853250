"""Call paths of a request through the source files: files entered, calls between files, and files that call each other.

`python -m tests.bench.ways` prints one row each for a cold GET, a hot GET, a PUT and a prefetch decision: medians of
five runs, traced with the interpreter's profile hook on every thread of the proxy. A row shows how many files a reader
has to visit to follow one request. `files` and `packages` are entered by a call; `moves` are distinct pairs (caller's
file, callee's file); `both ways` counts the pairs of files of which each calls the other; `crossings` counts all calls
from one file into another.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any

import outrider
from tests.support.bucket import Bucket
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = str(Path(outrider.__file__).parent) + "/"
_BODY = bytes(i % 251 for i in range(300_000))
_SHARDS = 12
_ROUNDS = 5


@dataclass(slots=True)
class Way:
    """Calls from file to file while `watching`, over all threads."""

    watching: bool = False
    files: set[str] = field(default_factory=set)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note(self, frame: Any, event: str, _: object) -> None:
        if not self.watching or event != "call" or not (name := frame.f_code.co_filename).startswith(_ROOT):
            return
        here = name[len(_ROOT) :]
        self.files.add(here)
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_ROOT):
            caller = caller.f_back
        if caller is not None and (there := caller.f_code.co_filename[len(_ROOT) :]) != here:
            self.calls[there, here] += 1

    def row(self) -> tuple[int, int, int, int, int]:
        both = sum((b, a) in self.calls for a, b in self.calls) // 2
        packages = {file.rpartition("/")[0] for file in self.files}
        return len(self.files), len(packages), len(self.calls), both, self.calls.total()


def traced(bucket: Bucket, act: Callable[[Any, str, Proxy], None], prepare: Callable[[Any, str], None],
           **settings: Any) -> Way:  # fmt: skip
    """`act` is watched, with a boto3 client of a fresh proxy, a bucket's name and the proxy; `prepare` is not."""
    way = Way()
    threading.setprofile(way.note)
    try:
        with Proxy(bucket, **settings) as proxy:
            threading.setprofile(None)
            name = bucket.make_bucket("ways")
            origin = bucket.client()
            for number in range(_SHARDS):
                origin.put_object(Bucket=name, Key=f"shard-{number:06}.tar", Body=_BODY)
            origin.close()
            client = proxy.client()
            prepare(client, name)
            proxy.settle()
            way.watching = True
            act(client, name, proxy)
            proxy.settle()
            way.watching = False
    finally:
        threading.setprofile(None)
    return way


def read(client: Any, name: str, number: int = 0) -> None:
    body = client.get_object(Bucket=name, Key=f"shard-{number:06}.tar")["Body"].read()
    assert body == _BODY


def rows(bucket: Bucket) -> dict[str, Way]:
    def nothing(_client: Any, _name: str) -> None:
        pass

    def twice(client: Any, name: str) -> None:
        read(client, name)
        read(client, name)

    def four_shards(client: Any, name: str) -> None:
        for number in range(4):
            read(client, name, number)

    def put(client: Any, name: str, _: Proxy) -> None:
        client.put_object(Bucket=name, Key="new", Body=b"new")

    return {
        "cold GET": traced(bucket, lambda c, n, _: read(c, n, 5), nothing),
        "hot GET": traced(bucket, lambda c, n, _: read(c, n), twice),
        "PUT": traced(bucket, put, nothing),
        # Four shards are read unwatched. The fifth is a read that makes the planner choose the next prefetch.
        "prefetch decision": traced(bucket, lambda c, n, _: read(c, n, 4), four_shards, prefetch="epoch"),
    }


def main() -> None:
    with Bucket() as bucket:
        rounds = [rows(bucket) for _ in range(_ROUNDS)]
    print("| request | files | packages | moves | both ways | crossings |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in rounds[0]:
        columns = zip(*(ways[name].row() for ways in rounds), strict=True)
        print(f"| {name} | {' | '.join(str(median_low(column)) for column in columns)} |")


if __name__ == "__main__":
    main()
