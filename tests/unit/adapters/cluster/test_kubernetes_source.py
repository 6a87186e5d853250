"""List and watch of the endpoints of a Service: whatever ends a watch, the source goes on with what is now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outrider.adapters.cluster.kubernetes_source import KubernetesSource
from outrider.core.cluster.member import ListedMember
from outrider.settings import SettingsError
from outrider.settings.members import KubernetesPeers
from tests.support.logs import logged
from tests.support.member_sources import KubernetesWorld, SetMember, Watched, endpoint, endpoint_slice, kubernetes

A, B, C = SetMember("10.0.0.1", "n1", "z1"), SetMember("10.0.0.2", "n2", "z2"), SetMember("10.0.0.3", "n3", "z1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[KubernetesWorld]:
    async with kubernetes(tmp_path) as begun:
        yield begun


async def test_a_watch_goes_on_from_the_version_of_the_list(world: KubernetesWorld) -> None:
    world.set_members([A, B])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        await world.server.watching.wait()
        world.server.delete("peers-b")
        assert await world.watched.next_list() == (world.expected(A),)
    listed, watched = world.server.requests
    assert "watch" not in listed
    assert watched["resourceVersion"] == "102"
    assert watched["timeoutSeconds"] == "120"


async def test_an_ended_watch_goes_on_after_a_pause_without_a_list(world: KubernetesWorld) -> None:
    world.set_members([A, B])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        await world.server.watching.wait()
        world.server.end_watches()
        world.set_members([A, C])
        assert await world.watched.sleeps.end_next() == 1.0
        assert await world.watched.next_list() == (world.expected(A), world.expected(C))
    assert ["watch" in query for query in world.server.requests] == [False, True, True]
    assert world.watched.failures == 0


@pytest.mark.parametrize("gone_as", ["event", "status"])
async def test_a_version_that_is_gone_is_listed_anew_and_is_no_outage(world: KubernetesWorld, gone_as: str) -> None:
    world.server.gone_as = gone_as
    world.set_members([A, B])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        await world.server.watching.wait()
        world.set_members([A, C])
        world.server.compact()
        assert await world.watched.next_list() == (world.expected(A), world.expected(C))
        world.set_members([C])
        assert await world.watched.next_list() == (world.expected(C),)
    assert world.watched.failures == 0


async def test_a_connection_that_breaks_is_followed_by_a_list(world: KubernetesWorld) -> None:
    world.set_members([A, B])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        await world.server.watching.wait()
        world.server.cut()
        world.set_members([A, C])
        await world.watched.failed(1)
        assert await world.watched.next_list() == (world.expected(A), world.expected(C))


async def test_a_watch_that_is_silent_for_too_long_is_given_up(world: KubernetesWorld) -> None:
    """A machine that is gone sends no reset."""
    world.set_members([A])
    async with world.watched.reading(world.source_of("n1", silent_s=0.05)):
        await world.watched.next_list()
        await world.watched.failed(1)
    assert ["watch" in query for query in world.server.requests[:2]] == [False, True]


async def test_a_watch_that_is_refused_is_tried_ever_more_seldom(world: KubernetesWorld) -> None:
    """The right to list without that to watch: each list is answered, and nothing is well."""
    world.server.refuses_watches = True
    world.set_members([A])
    with logged("outrider.adapters.cluster") as records:
        async with world.watched.reading(world.source()):
            await world.watched.next_list()
            waits = [await world.watched.sleeps.end_next() for _ in range(6)]
    assert waits == sorted(waits)
    assert waits[-1] == 15.0
    assert [record.getMessage() for record in records] == ["source of members gives no list"]


async def test_the_token_is_read_again_when_it_has_been_renewed(world: KubernetesWorld) -> None:
    world.set_members([A])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        await world.server.watching.wait()
        world.server.rotate("second")
        world.server.end_watches()
        world.set_members([A, B])
        assert await world.watched.next_list() == (world.expected(A), world.expected(B))
    assert world.watched.failures == 0


async def test_endpoints_of_other_ports_families_and_conditions(world: KubernetesWorld) -> None:
    world.server.put(
        endpoint_slice(
            "four",
            [
                endpoint("10.0.0.1", node="n1", zone="z1", ready=True, serving=True, terminating=False),
                endpoint("10.0.0.2", node="n2", ready=False, serving=False, terminating=False),
                endpoint("10.0.0.3", node="n3", ready=False, serving=True, terminating=True),
                endpoint("10.0.0.4", node="n4", ready=False, serving=False, terminating=True),
                endpoint("10.0.0.5", node="n5"),
                endpoint("10.0.0.6", node="n6", ready=False),
            ],
            ports={"s3": 9480, "peer": 9999},
        )
    )
    world.server.put(endpoint_slice("six", [endpoint("fd00::1", node="n1", ready=True)], family="IPv6"))
    async with world.watched.reading(world.source()):
        assert await world.watched.next_list() == (
            ListedMember("10.0.0.1:9999", "n1", "z1"), ListedMember("10.0.0.3:9999", "n3"),
            ListedMember("10.0.0.5:9999", "n5"),
        )  # fmt: skip
    watched = Watched()
    world.watched = watched
    async with watched.reading(world.source_of("n1", prefers_ipv6=True)):
        assert await watched.next_list() == (ListedMember("[fd00::1]:9482", "n1"),)


async def test_a_family_without_an_endpoint_gives_way_to_the_other(world: KubernetesWorld) -> None:
    world.server.put(endpoint_slice("four", [endpoint("10.0.0.1", node="n1", ready=False)]))
    world.server.put(endpoint_slice("six", [endpoint("fd00::1", node="n1", ready=True)], family="IPv6"))
    async with world.watched.reading(world.source()):
        assert [entry.address for entry in await world.watched.next_list()] == ["[fd00::1]:9482"]


@pytest.mark.parametrize(
    ("own_name", "names"),
    [("n1", ["n1", "n1"]), ("sidecar-1", ["sidecar-1", "sidecar-2"]), ("elsewhere", ["", ""])],
)
async def test_members_are_named_as_this_one_is(world: KubernetesWorld, own_name: str, names: list[str]) -> None:
    """Two pods of one node are two members."""
    pods = [endpoint(f"10.0.0.{i}", node="n1", pod=f"sidecar-{i}", ready=True) for i in (1, 2)]
    world.server.put(endpoint_slice("a", pods))
    async with world.watched.reading(world.source_of(own_name)):
        assert [entry.name for entry in await world.watched.next_list()] == names


async def test_the_others_keep_their_names_while_this_member_is_not_in_the_list(world: KubernetesWorld) -> None:
    world.set_members([A, B])
    async with world.watched.reading(world.source_of("n1")):
        await world.watched.next_list()
        world.set_members([C, B])
        assert await world.watched.next_list() == (world.expected(B), world.expected(C))


async def test_this_member_need_not_be_ready_to_be_known_by_its_endpoint(world: KubernetesWorld) -> None:
    ready = endpoint("10.0.0.1", node="n1", pod="p1", ready=True)
    world.server.put(endpoint_slice("a", [ready, endpoint("10.0.0.2", node="n2", pod="p2", ready=False)]))
    async with world.watched.reading(world.source_of("n2")):
        assert [entry.name for entry in await world.watched.next_list()] == ["n1"]


async def test_several_ports_without_a_name_are_an_error_that_says_so(world: KubernetesWorld) -> None:
    world.server.put(endpoint_slice("a", [endpoint("10.0.0.1", ready=True)], ports={"s3": 9480, "admin": 9481}))
    with logged("outrider.adapters.cluster") as records:
        async with world.watched.reading(world.source()):
            await world.watched.failed(1)
    assert "the Service has the ports admin, s3, and none is named `peer`" in vars(records[0])["error"]


def test_outside_of_a_cluster_it_is_refused_by_the_name_of_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="--peers kubernetes:a/b needs a pod with a service account"):
        KubernetesSource(
            KubernetesPeers("a", "b"), Watched().outages(), own_name="n", own_port=1, service_account=tmp_path
        )
