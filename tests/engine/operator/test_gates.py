"""Pods that wait for their data: warmed once, opened with a reason, whoever of several operators does it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import jsonpatch
import pytest

from outrider.core.cluster.object_samples import KnownObject, ObjectSample
from outrider.core.operator.holdings import HeldDataset
from outrider.core.operator.pod_patch import GATE
from outrider.core.operator.warm_gate import warmup_name
from outrider.engine.operator.event_writer import event_of
from outrider.engine.operator.gates import Gates
from outrider.engine.operator.holdings_watch import Holdings
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.engine.operator.namespaces import Namespaces
from outrider.operator_ports import CacheError, CachePod, CacheRefusedError, ConflictError, KubeError, Manifest
from tests.support.pods import DATA, Pod, near, pod

NOW = datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC).timestamp()


@dataclass
class FakeKube:
    """Pods by name. `refuses`: the error that the next patch gets. `hangs`: the pod whose patch is never answered."""

    pods: dict[str, Pod] = field(default_factory=dict)
    events: list[Manifest] = field(default_factory=list)
    refuses: KubeError | None = None
    hangs: str = ""
    namespace: str = "cache"

    def add(self, *pods: Pod, gated: bool = True) -> None:
        for each in pods:
            if gated:
                each["spec"]["schedulingGates"] = [{"name": GATE}]
            self.pods[each["metadata"]["name"]] = each

    async def pending_pods(self, label: str, value: str | None) -> Sequence[Manifest]:
        return [each for each in self.pods.values() if label in each["metadata"]["labels"]]

    async def all_of(self, kind: str) -> Sequence[Manifest]:
        raise AssertionError

    async def pods_in(self, namespace: str, label: str | None) -> Sequence[Manifest]:
        raise AssertionError

    async def patch_pod(self, namespace: str, name: str, patch: Sequence[Manifest]) -> None:
        if self.refuses is not None:
            refused, self.refuses = self.refuses, None
            raise refused
        if name == self.hangs:
            await asyncio.Event().wait()
        assert namespace == "team"
        try:
            self.pods[name] = jsonpatch.JsonPatch(list(patch)).apply(self.pods[name])
        except jsonpatch.JsonPatchTestFailed as error:
            raise ConflictError(422, "Invalid") from error

    async def may(self, verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> bool:
        raise AssertionError

    async def emit(self, event: Manifest) -> None:
        self.events.append(event)

    async def endpoint_slices(self, namespace: str, service: str) -> Sequence[Manifest]:
        return [{"endpoints": [
            {"addresses": ["10.0.0.1"], "nodeName": "a", "zone": "z", "conditions": {"ready": True}},
            {"addresses": ["10.0.0.2"], "nodeName": "b", "conditions": {"ready": False}},
        ]}]  # fmt: skip

    async def get(self, kind: str, name: str) -> Manifest | None:
        raise AssertionError

    async def create(self, kind: str, manifest: Manifest) -> None:
        raise AssertionError

    async def update(self, kind: str, manifest: Manifest) -> None:
        raise AssertionError

    async def patch(self, kind: str, name: str, patch: Sequence[Manifest]) -> None:
        raise AssertionError

    def reasons(self) -> list[tuple[str, str]]:
        return [(event["involvedObject"]["name"], event["reason"]) for event in self.events]


@dataclass
class FakeCaches:
    """`on_disk`: of 1,000 bytes. `refuses`: what each call gets. `hangs`: the warm-up whose report never comes."""

    on_disk: int = 0
    state: str = "running"
    ended_s: float | None = None
    failures: list[Manifest] = field(default_factory=list)
    begun: Counter[str] = field(default_factory=Counter)
    at: list[tuple[str, list[str]]] = field(default_factory=list)
    refuses: CacheError | None = None
    hangs: str = ""

    async def warm(self, name: str, urls: Sequence[str], *, at: CachePod | None = None) -> None:
        if self.refuses is not None:
            raise self.refuses
        if self.hangs == "all":
            await asyncio.Event().wait()
        self.begun[name] += 1
        if at is not None:
            self.at.append((at.node, list(urls)))

    async def progress(self, name: str, *, at: CachePod | None = None) -> Manifest | None:
        if self.hangs in (name, "all"):
            await asyncio.Event().wait()
        if self.refuses is not None:
            raise self.refuses
        if name not in self.begun:
            return None
        return {
            "state": self.state, "listing": False, "objects": {"wanted": 1, "on_disk": 0, "failed": 0, "unsized": 0},
            "bytes": {"wanted": 1000, "on_disk": self.on_disk, "fetched": 0}, "rate_bytes_per_s": 5, "eta_s": None,
            "failures": self.failures, "ended_s": self.ended_s,
        }  # fmt: skip

    async def datasets(self, cache: CachePod) -> Sequence[HeldDataset]:
        return [HeldDataset("datasets", "imagenet/", ObjectSample([KnownObject(1, 100, 100)]))]


class World:
    def __init__(self) -> None:
        self.kube, self.caches, self.now = FakeKube(), FakeCaches(), NOW
        self.begin_anew()

    def begin_anew(self) -> None:
        """Another operator, which remembers nothing."""
        self.metrics = OperatorMetrics()
        self.holdings = Holdings(self.kube, self.caches, "cache", "peers")
        self.gates = Gates(
            self.kube, self.caches, self.holdings, self.metrics, Namespaces(self.kube, {}, lambda: self.now),
            name="outrider-operator", me="me", clock=lambda: self.now,
        )  # fmt: skip

    async def step(self) -> float:
        await self.holdings.refresh()
        return await self.gates.step()

    def gated(self) -> list[str]:
        return [name for name, each in self.kube.pods.items() if each["spec"].get("schedulingGates")]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.gates.close()


async def test_the_pods_of_a_job_are_warmed_once_and_opened_together_with_their_affinity(world: World) -> None:
    world.kube.add(*(near(warm="0.9", name=f"train-{rank}") for rank in range(8)))
    await world.step()
    world.caches.on_disk = 899
    await world.step()
    assert len(world.gated()) == 8
    assert world.metrics.registry.get_sample_value("outrider_operator_gated_pods") == 8
    world.caches.on_disk = 900
    await world.step()
    assert world.gated() == []
    assert list(world.caches.begun.values()) == [1]
    for each in world.kube.pods.values():
        assert each["spec"]["affinity"]["nodeAffinity"]
    await world.step()
    assert Counter(world.kube.reasons()) == {
        (f"train-{rank}", reason): 1 for rank in range(8) for reason in ("Warming", "Warm")
    }


async def test_the_affinity_is_that_of_the_caches_as_they_are_when_the_gate_opens(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    world.caches.on_disk = 1000
    await world.gates.step()
    [opened] = world.kube.pods.values()
    [first, *_] = opened["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert first["preference"]["matchFields"][0]["values"] == ["a"]


async def test_a_cache_that_hangs_over_one_list_keeps_no_pod_of_another(world: World) -> None:
    world.kube.add(near("s3://hanging/a/", warm="0.9", name="other"), near(warm="0.9"))
    world.caches.on_disk = 1000
    world.caches.hangs = warmup_name(["s3://hanging/a/"])
    step = asyncio.ensure_future(world.gates.step())
    while world.gated() != ["other"]:
        await asyncio.sleep(0)
    step.cancel()


async def test_an_operator_that_begins_anew_goes_on(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    await world.step()
    world.begin_anew()
    world.caches.on_disk = 1000
    await world.step()
    assert world.gated() == []
    assert list(world.caches.begun.values()) == [1]


async def test_a_warmup_that_a_restart_of_the_cache_ended_is_begun_again(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    await world.step()
    world.caches.begun.clear()
    await world.step()
    assert list(world.caches.begun.values()) == [1]


async def test_an_ended_warmup_opens_the_gates_of_new_pods_only_while_it_proves_something(world: World) -> None:
    world.caches.state, world.caches.on_disk, world.caches.ended_s = "done", 1000, 59
    world.caches.begun[warmup_name([DATA])] = 1
    world.kube.add(near(warm="0.9", name="early"))
    await world.step()
    assert (world.gated(), list(world.caches.begun.values())) == ([], [1])
    world.kube.add(near(warm="0.9", name="late"))
    world.caches.ended_s = 60
    await world.step()
    assert (world.gated(), list(world.caches.begun.values())) == (["late"], [2]), "the bucket is listed anew"
    world.caches.ended_s = 0
    await world.step()
    assert world.gated() == []


async def test_while_the_bucket_is_away_a_warmup_is_tried_again_with_growing_pauses(world: World) -> None:
    world.caches.state, world.caches.begun[warmup_name([DATA])] = "failed", 1
    world.caches.failures = [{"object": DATA, "error": "it does not answer", "passing": True}]
    world.kube.add(near(warm="0.9"))
    began: list[float] = []
    ended = 0.0
    for second in range(200):
        world.caches.ended_s = second - ended
        before = world.caches.begun.total()
        await world.step()
        if world.caches.begun.total() > before:
            began.append(second - ended)
            ended = second
    assert began == [5, 10, 20, 40, 60, 60]
    assert world.gated() == ["train-0"]
    world.caches.state, world.caches.on_disk, world.caches.ended_s, world.caches.failures = "done", 1000, 0, []
    await world.step()
    assert world.kube.reasons()[-1] == ("train-0", "Warm")


async def test_a_deadline_passes_on_time_when_the_caches_hang(world: World) -> None:
    # More lists hang than are looked after at once.
    for number in range(20):
        world.kube.add(near(f"s3://hanging/{number}/", warm="0.9", name=f"train-{number}"))
    world.caches.hangs = "all"
    # So does the cache of a node where a pod was placed.
    world.kube.add(near(nodeName="a", name="placed"), gated=False)
    await world.holdings.refresh()
    world.now = NOW + 898.5
    assert await world.step() == 1.5, "the next round begins when the deadline passes"
    world.now = NOW + 900
    await world.step()
    assert world.gated() == []


async def test_a_dataset_that_does_not_exist_opens_the_gate_with_the_reason(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    world.caches.refuses = CacheRefusedError("NoSuchBucket: there is none")
    await world.step()
    assert world.gated() == []
    [event] = world.kube.events
    assert (event["reason"], event["type"]) == ("WarmFailed", "Warning")
    assert "NoSuchBucket" in event["message"]


async def test_a_cache_that_does_not_answer_holds_no_pod_beyond_its_deadline(world: World) -> None:
    world.kube.add(near(warm="0.9"), near(warm="0.9", name="patient", annotations={"outrider.dev/warm-deadline": "1h"}))
    world.caches.refuses = CacheError("no route")
    world.now = NOW + 899
    await world.step()
    assert world.gated() == ["train-0", "patient"]
    world.now = NOW + 900
    await world.step()
    assert world.gated() == ["patient"]
    assert world.kube.reasons() == [("train-0", "WarmDeadline")]


@pytest.mark.parametrize("error", [ConflictError(422, "test failed"), KubeError(500, "no"), KubeError(0, "away")])
async def test_a_patch_that_is_refused_is_made_again(world: World, error: KubeError) -> None:
    world.kube.add(near(warm="0.9"))
    world.caches.on_disk = 1000
    world.kube.refuses = error
    await world.step()
    assert world.gated() == ["train-0"]
    assert world.kube.reasons() == []
    await world.step()
    assert world.gated() == []


async def test_a_pod_that_is_deleted_while_it_waits_is_forgotten(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    await world.step()
    world.kube.pods.clear()
    world.caches.on_disk = 1000
    await world.step()
    assert world.metrics.registry.get_sample_value("outrider_operator_gated_pods") == 0
    assert world.kube.reasons() == [("train-0", "Warming")]


async def test_a_wish_that_makes_no_sense_is_reported_once_and_holds_no_pod(world: World) -> None:
    world.kube.add(near(warm="150 %"), gated=False)
    world.kube.add(near(warm="150 %", name="changed-later"))
    world.kube.add(pod(labels={"outrider.dev/inject": "both"}, name="injected"), gated=False)
    await world.step()
    await world.step()
    assert world.gated() == []
    assert sorted(world.kube.reasons()) == [
        (name, "InvalidAnnotation") for name in ("changed-later", "injected", "train-0")
    ]
    assert list(world.caches.begun.values()) == []


async def test_progress_is_reported_once_a_minute(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    for second in range(0, 150, 3):
        world.now = NOW + second
        world.caches.on_disk = 5 * second
        await world.step()
    assert [event["message"] for event in world.kube.events] == [
        f"warm: {percent} % of 1.0 kB, 5 B/s" for percent in (0, 30, 60)
    ]


async def test_of_thousands_of_pods_each_is_reported_less_often(world: World) -> None:
    world.kube.add(*(near(warm="0.9", name=f"train-{rank}") for rank in range(610)))
    counts = []
    for second in (0, 60, 61):
        world.now = NOW + second
        await world.step()
        counts.append(len(world.kube.events))
    assert counts == [610, 610, 1220], "ten a second at most"


async def test_data_that_is_warm_already_is_looked_after_soon(world: World) -> None:
    world.kube.add(near(warm="0.9"))
    first, second = await world.step(), await world.step()
    assert first < 1 < second


async def test_a_slow_answer_to_one_pod_of_a_job_holds_no_other(world: World) -> None:
    world.kube.add(near(warm="0.9", name="slow"), *(near(warm="0.9", name=f"train-{rank}") for rank in range(3)))
    world.caches.on_disk = 1000
    world.kube.hangs = "slow"
    step = asyncio.ensure_future(world.gates.step())
    while world.gated() != ["slow"]:
        await asyncio.sleep(0)
    step.cancel()


async def test_the_cache_of_the_node_where_a_pod_was_placed_is_warmed_once(world: World) -> None:
    world.kube.add(near(nodeName="a"), near(nodeName="unknown", name="b"), gated=False)
    await world.step()
    await world.step()
    assert world.caches.at == [("a", [DATA])]


async def test_events_have_the_form_of_the_api(world: World) -> None:
    world.kube.add(near(warm="0.9", name="n" * 253))
    world.caches.on_disk = 1000
    await world.step()
    [event] = world.kube.events
    assert len(event["metadata"]["generateName"]) <= 253 - 5
    cut = pod(name="n" * 229 + "-" + "m" * 23)
    for is_once, name in ((True, "name"), (False, "generateName")):
        event_name = event_of(cut, "R", "n", is_warning=True, time="", by="me", is_once=is_once)["metadata"][name]
        assert (len(event_name) <= 253, event_name[229]) == (True, ".")
    assert event["involvedObject"]["uid"] == "uid-" + "n" * 253
    assert json.loads(json.dumps(event))["firstTimestamp"] == "2026-01-01T00:00:00Z"
