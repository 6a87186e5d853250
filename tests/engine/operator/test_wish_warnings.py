"""Pods whose annotations make no sense get an Event, although they run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from outrider.engine.operator.event_writer import EventWriter
from outrider.engine.operator.wish_warnings import Warned
from outrider.operator_ports import ConflictError, KubeError, Manifest
from tests.support import fake_kube
from tests.support.pods import Pod, near, pod

NOW = datetime(2026, 1, 1, 0, 0, 0, tzinfo=UTC).timestamp()


@dataclass
class FakeKube(fake_kube.FakeKube):
    """An Event whose name is taken is refused. `looks`: the namespaces that were listed, by label."""

    pods: list[Pod] = field(default_factory=list)
    events: dict[str, Manifest] = field(default_factory=dict)
    looks: list[tuple[str, str | None]] = field(default_factory=list)

    async def pods_in(self, namespace: str, label: str | None) -> Sequence[Manifest]:
        self.looks.append((namespace, label))
        if self.away:
            raise KubeError(0, "away")
        return [
            each
            for each in self.pods
            if each["metadata"]["namespace"] == namespace and label in (None, *each["metadata"]["labels"])
        ]

    async def emit(self, event: Manifest) -> None:
        name = event["metadata"]["name"]
        if name in self.events:
            raise ConflictError(409, "AlreadyExists")
        self.events[name] = event

    def pods_with_events(self) -> list[str]:
        return sorted(event["involvedObject"]["name"] for event in self.events.values())


class World:
    def __init__(self) -> None:
        self.kube, self.now = FakeKube(), NOW
        self.warned = self.operator()

    def operator(self) -> Warned:
        """One of several, or one that begins anew."""
        events = EventWriter(self.kube, "me", lambda: self.now, asyncio.Semaphore(2))
        return Warned(self.kube, events, lambda: self.now)

    async def until(self, second: float) -> None:
        while self.now < NOW + second:
            self.now += await self.warned.step()


@pytest.fixture
def world() -> World:
    return World()


def runs(each: Pod) -> Pod:
    return each | {"status": {"phase": "Running"}}


async def test_a_pod_that_runs_at_once_is_warned_once(world: World) -> None:
    world.kube.pods += [runs(near(warm="150 %")), runs(near(warm="0.5", name="right")), runs(pod(name="other"))]
    world.kube.pods.append(runs(pod(labels={"outrider.dev/inject": "both"}, name="injected")))
    world.warned.note("team", True)
    await world.until(30)
    assert world.kube.pods_with_events() == ["injected", "train-0"]
    [event] = [each for each in world.kube.events.values() if each["involvedObject"]["name"] == "train-0"]
    assert (event["reason"], event["type"]) == ("InvalidAnnotation", "Warning")
    assert "'150 %' is no share" in event["message"]


async def test_a_pod_that_comes_late_is_found_and_then_no_more_is_listed(world: World) -> None:
    world.warned.note("team", True)
    await world.until(3)
    world.kube.pods.append(runs(near(warm="150 %")))
    await world.until(10)
    assert world.kube.pods_with_events() == ["train-0"]
    looks = len(world.kube.looks)
    await world.until(100)
    assert len(world.kube.looks) == looks == 4, "two looks, for each of two labels"


async def test_where_nothing_was_wrong_nothing_is_listed(world: World) -> None:
    await world.until(10)
    world.warned.note("team", True)
    await world.until(20)
    assert {namespace for namespace, _ in world.kube.looks} == {"team"}


async def test_a_namespace_of_many_wrong_pods_is_not_listed_for_each(world: World) -> None:
    for second in range(60):
        world.warned.note("team", True)
        await world.until(second)
    assert len(world.kube.looks) <= 2 * 60 / 5 + 2


async def test_two_operators_and_one_that_begins_anew_warn_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.kube.pods.append(runs(near(warm="150 %")))
    for _ in range(2):
        world.warned = world.operator()
        world.warned.note("team", True)
        await world.until(world.now - NOW + 10)
    assert world.kube.pods_with_events() == ["train-0"]
    assert caplog.text == "", "the API server has refused no event"


async def test_pods_that_ran_long_before_are_left_alone(world: World) -> None:
    world.kube.pods += [near(warm="150 %", created="2025-12-31T23:00:00Z", name="old"), near(warm="150 %")]
    world.warned.note("team", True)
    await world.until(10)
    assert world.kube.pods_with_events() == ["train-0"]


async def test_an_api_server_that_is_away_is_asked_again(world: World) -> None:
    world.kube.pods.append(runs(near(warm="150 %")))
    world.warned.note("team", True)
    world.now += 1
    world.kube.away = True
    with pytest.raises(KubeError):
        await world.warned.step()
    world.kube.away = False
    await world.until(10)
    assert world.kube.pods_with_events() == ["train-0"]


async def test_a_pod_that_names_data_and_lacks_the_label_is_warned_of_it(world: World) -> None:
    annotations = {"outrider.dev/data": "s3://corpus/train/"}
    world.kube.pods += [runs(pod(annotations=annotations)), runs(pod(name="other"))]
    world.kube.pods.append(runs(pod(annotations=annotations, labels={"outrider.dev/inject": "endpoint"}, name="half")))
    world.warned.note("team", False)
    await world.until(30)
    assert world.kube.pods_with_events() == ["half", "train-0"]
    assert {event["message"] for event in world.kube.events.values()} == {
        'annotation outrider.dev/data has no effect without the label outrider.dev/schedule: "true"'
    }
