"""Small reads all over a large object, as of tables: the bucket gives little more than is read."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "scattered"
SIZE = 64 * 1024 * 1024
READS, READ_BYTES = 60, 4096


def test_the_bucket_gives_at_most_twenty_times_what_is_read(bucket: Bucket, simulator: Simulator) -> None:
    chance = Random(9)
    data = chance.randbytes(SIZE)
    bucket.store(NAME, {"table.parquet": data})
    with Proxy(bucket, simulator.endpoint) as proxy, RawConnection(proxy.address) as connection:
        simulator.reset()
        for _ in range(READS):
            start = chance.randrange(SIZE - READ_BYTES)
            span = (("range", f"bytes={start}-{start + READ_BYTES - 1}"),)
            assert connection.ask("GET", f"/{NAME}/table.parquet", span).body == data[start : start + READ_BYTES]
        proxy.settle()
        assert simulator.counts().body_bytes <= 20 * READS * READ_BYTES
