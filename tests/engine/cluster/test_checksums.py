"""The checksum of an object is asked of the bucket by one member, for all of them."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from outrider.core.model import ObjectVersion
from outrider.core.s3.checksums import Kind
from tests.support.engine import BLOCK, REF, as_large, by_threads
from tests.support.fakes import RAMP
from tests.support.members import Cluster, Node, cluster

DATA = RAMP[: 8 * BLOCK]


def put(nodes: Cluster, data: bytes) -> None:
    running = Kind.CRC64NVME.begin()
    running.update(data)
    value = b64encode(running.digest()).decode()
    nodes.origin.put(REF, data, (("x-amz-checksum-crc64nvme", value), ("x-amz-checksum-type", "FULL_OBJECT")))


def version_of(node: Node) -> ObjectVersion:
    version = node.engine.versions.fresh(REF)
    assert version is not None
    return version


@pytest.mark.parametrize("buffer_bytes", [as_large, by_threads])
async def test_all_members_that_verify_an_object_cost_one_head(buffer_bytes: object, tmp_path: Path) -> None:
    with cluster(tmp_path, "abcd", verify_origin=True, buffer_bytes=buffer_bytes) as nodes:
        put(nodes, DATA)
        await nodes.meet()
        for node in nodes:
            assert await node.get() == DATA
            await nodes.settle()
        assert nodes.origin.count("HEAD") == 1
        for node in nodes:
            key = node.engine.layout.key(version_of(node), 0)
            assert node.engine.store.is_proved(key)


async def test_a_member_whose_authority_does_not_answer_asks_the_bucket(tmp_path: Path) -> None:
    with cluster(tmp_path, verify_origin=True) as nodes:
        put(nodes, DATA)
        await nodes.meet()
        (edge, _) = nodes.others_of()
        await edge.get()
        edge.wire.services = {}
        await nodes.settle()
        assert edge.engine.store.is_proved(edge.engine.layout.key(version_of(edge), 0))
