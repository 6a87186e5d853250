"""Operators before an API server and caches in several zones: each pod waits for data in zones where it can run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outrider.core.operator.affinity import ZONE_LABEL
from outrider.core.operator.wishes import OPERATOR
from tests.server.zoned_caches import Scene, ZonedCaches, scene, until, zoned_caches
from tests.support.bucket import Bucket
from tests.support.conditions import Fault, FaultKind
from tests.support.fake_kube import EVENTS, NODES
from tests.support.fakes import ramp

BUCKET = "zoned"
OBJECTS, OBJECT_BYTES = 16, 50_000
ALL = OBJECTS * OBJECT_BYTES
A1, A2, B = "node-1", "node-2", "node-3"


@pytest.fixture(scope="module")
def caches(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZonedCaches]:
    bucket.make_bucket(BUCKET)
    with zoned_caches(bucket, tmp_path_factory.mktemp("zones"), {A1: "a", A2: "a", B: "b"}) as made:
        yield made


@pytest.fixture
async def at(caches: ZonedCaches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with scene(caches, tmp_path, monkeypatch) as made:
        yield made


def put(bucket: Bucket, prefix: str, count: int = OBJECTS) -> str:
    """The URL of so many objects."""
    s3 = bucket.client()
    for number in range(count):
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}/{number:02}.tar", Body=ramp(OBJECT_BYTES, number))
    s3.close()
    return f"s3://{BUCKET}/{prefix}/"


async def test_each_pod_waits_for_the_caches_of_a_zone_where_it_can_run(at: Scene, bucket: Bucket) -> None:
    data = put(bucket, "bound")
    at.kube.place(NODES, {
        "metadata": {"name": A1, "labels": {ZONE_LABEL: "a", "gpu": "h100"}},
        "spec": {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
    })  # fmt: skip
    async with at.operator(B):
        # Only node-1 has what it asks for.
        at.wait(data, nodeSelector={"gpu": "h100"}, tolerations=[{"key": "gpu", "operator": "Exists"}])
        assert await at.opened() == ("Warm", "100 % of 800 kB are cached")
        there = at.caches.held_bytes("bound/")
        assert (there[A1] + there[A2], there[B]) == (ALL, 0)
        # Each of the two owns a part, and knows no other objects.
        assert 0.25 * ALL <= min(there[A1], there[A2]) < 0.5 * ALL < max(there[A1], there[A2]) < 0.75 * ALL
        more, less = sorted((A1, A2), key=there.__getitem__, reverse=True)
        assert at.weights() == {more: 50, less: 25, "a": 50}
        # This one may run in both zones, of which one is warm.
        at.wait(data, name="any")
        assert (await at.opened("any"))[0] == "Warm"
        assert at.caches.held_bytes("bound/")[B] == 0, "one zone is enough"


async def test_a_new_leader_in_another_zone_takes_up_the_warmup_that_is_under_way(at: Scene, bucket: Bucket) -> None:
    data, origin = put(bucket, "taken-up"), at.caches.origin
    origin.reset()
    origin.conditions.faults = [Fault(FaultKind.LATE, None, path_contains="taken-up/07")]
    try:
        for beside in (A1, B):
            async with at.operator(beside):
                if beside == A1:
                    at.wait(data)
                await until(lambda: any(by.endswith(beside) for by in warming(at)))  # noqa: B023
                if beside == B:
                    origin.conditions.faults = []
                    origin.release()
                    assert (await at.opened())[0] == "Warm"
    finally:
        origin.conditions.faults = []
        origin.release()
    gets = [request.path for request in origin.log() if request.method == "GET" and "taken-up/" in request.path]
    assert sorted(gets) == [f"/{BUCKET}/taken-up/{number:02}.tar" for number in range(OBJECTS)], "read once"


async def test_an_operator_leaves_the_gates_of_another_one_alone(at: Scene, bucket: Bucket) -> None:
    """It would open each pod of theirs, since there is no such data."""
    nothing = f"s3://{BUCKET}/none/"
    at.namespace("vision", team="vision")
    theirs = {"annotations": {OPERATOR: "outrider-operator"}}
    at.wait(nothing, name="elsewhere")
    at.wait(nothing, name="theirs", namespace="vision", **theirs)
    at.wait(nothing, name="own", namespace="vision", annotations={OPERATOR: "second"})
    async with at.operator(B, name="second", namespaces={"matchLabels": {"team": "vision"}}):
        assert (await at.opened("own", namespace="vision"))[0] == "WarmFailed"
        assert {event["involvedObject"]["name"] for event in at.kube.all_of(EVENTS)} == {"own"}
    async with at.operator(A1):
        for name, namespace in (("elsewhere", "team"), ("theirs", "vision")):
            reason, why = await at.opened(name, namespace=namespace)
            assert (reason, nothing in why) == ("WarmFailed", True)


def warming(at: Scene) -> list[str]:
    """The operators that have reported a warm-up that goes on."""
    return [each["reportingInstance"] for each in at.kube.all_of(EVENTS) if each["reason"] == "Warming"]
