"""A bucket as files over a cluster: one mount on each node, counted with real processes and a real kernel."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from outrider.cli.mount.missing import complaint, facts
from tests.support.proxy import Command
from tests.trust.cluster import NAME, TENANT, World
from tests.trust.test_cluster_asks_the_bucket_once import BLOCK, OBJECTS, SHARE_MAX, Excused, dataset, share

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.trust.cluster import Stored


@pytest.mark.skipif(complaint(facts()) is not None, reason=str(complaint(facts())))
def test_mounts_on_all_nodes_take_each_byte_from_the_bucket_once(bucket: Bucket, tmp_path: Path) -> None:
    with (
        World(bucket, tmp_path, count=2, block_bytes=BLOCK, flags={"prefetch": "epoch"}) as world,
        ExitStack() as stack,
    ):
        objects = dataset(world, "files")
        places = []
        for node in world.nodes.all:
            own = tmp_path / f"mount-{node.name}"
            place = own / "files"
            place.mkdir(parents=True)
            command = Command(bucket, own)
            command.environ |= {"AWS_ACCESS_KEY_ID": TENANT[0], "AWS_SECRET_ACCESS_KEY": TENANT[1]}
            words = ("--endpoint", node.endpoint, f"s3://{NAME}/files", str(place))
            process = stack.enter_context(command.start("mount", *words))
            stack.callback(process.terminate)
            assert process.stderr is not None
            assert "Ctrl-C" in process.stderr.readline()
            places.append(place)
        world.calm()
        excused = Excused(world)
        with ThreadPoolExecutor(len(places)) as pool:
            assert all(
                pool.map(
                    is_right, places, [random.Random(place.parent.name).sample(objects, OBJECTS) for place in places]
                )
            )
        assert 1.0 <= share(world, objects) <= SHARE_MAX + excused.share


def is_right(place: Path, objects: Sequence[Stored]) -> bool:
    return all((place / stored.key.removeprefix("files/")).read_bytes() == stored.data for stored in objects)
