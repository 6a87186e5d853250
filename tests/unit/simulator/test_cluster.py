"""Many nodes in virtual time: small cases by hand, no byte lost, one node as the simulator of one, and the command."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli import with_commands
from outrider.cli.simulate_cluster import parse_rate
from outrider.core.model import ObjectRef
from outrider.simulator.cluster import WAYS, Buffer, ClusterSimulation, SimNode, SimNodes, Way
from outrider.simulator.run import Machine, Simulation
from outrider.simulator.scenarios import JobSpec, OrderKind, Shards, order_of
from outrider.simulator.world import AWAITED, PREFETCHED, SimFill, SimObject, Timeline

MIB = 2**20
SMALL = ["--nodes", "2", "--gpus-per-node", "1", "--readers", "2", "--shards", "16", "--size", "2MiB",
         "--block-size", "1MiB", "--cache", "50%", "--epochs", "2"]  # fmt: skip

# Searches for seeds have nothing to do with what is tested here.
THREE = SimNodes(3, Machine(40 * MIB, 30.0 * MIB, 0.05, MIB, step_s=1.0), 50.0 * MIB, 20.0 * MIB)

any_way = pytest.mark.parametrize("way", WAYS)
SIMULATE = with_commands(["simulate"])


def machine(blocks: int) -> Machine:
    """Room for so many blocks of 1 MiB on each node; the bucket gives 1 MiB/s, each block after 0.5 s."""
    return Machine(blocks * MIB, 1.0 * MIB, 0.5, MIB, prefetch=False)


def read_by(lists: list[list[int]], count: int, epochs: int = 1) -> JobSpec:
    """Shards of one block, which readers of 1 MiB/s read in this order in each epoch."""
    return JobSpec("train", Shards(count, MIB), lambda _: lists, epochs, 1.0 * MIB)


def job(kind: OrderKind, *, shards: int = 48, readers: int = 4, epochs: int = 3) -> JobSpec:
    return JobSpec(
        "train", Shards(shards, 4 * MIB), order_of(kind, list(range(shards)), readers, 1), epochs, 10.0 * MIB
    )


def run(nodes: SimNodes, way: Way, spec: JobSpec) -> ClusterSimulation:
    sim = ClusterSimulation(nodes, way, spec)
    sim.run()
    return sim


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("way", "took_s", "from_bucket", "from_peers"), [
    # 1 s through the bucket's line, 0.5 s of latency, 0.5 s into the owner; 0.5 s out of it, 0.5 s into the other.
    ("cluster", 3.0, 1, 1),
    # The second block leaves the bucket 1 s after the first.
    ("by itself", 3.0, 2, 0),
    ("direct", 3.0, 2, 0),
])  # fmt: skip
def test_two_nodes_read_one_block_at_once(way: Way, took_s: float, from_bucket: int, from_peers: int) -> None:
    sim = run(SimNodes(2, machine(4), 2.0 * MIB, inf), way, read_by([[0], [0]], 1))
    (epoch,) = sim.epochs
    assert epoch.read.took_s == pytest.approx(took_s + 1.0)  # the reader consumes it in a second
    assert epoch.utilisation == pytest.approx(1 / (took_s + 1.0))
    assert (epoch.read.origin_bytes, epoch.peer_bytes) == (from_bucket * MIB, from_peers * MIB)


@pytest.mark.parametrize(("way", "took_s"), [("cluster", 5.5), ("by itself", 5.5), ("direct", 5.5)])
def test_a_slow_connection_takes_its_time_for_each_block(way: Way, took_s: float) -> None:
    """4 s for a block; the second GET, or the peer, follows 1 s later."""
    sim = run(SimNodes(2, machine(4), 2.0 * MIB, MIB / 4), way, read_by([[0], [0]], 1))
    assert sim.epochs[0].read.took_s == pytest.approx(took_s + 1.0)


def lists_of_others(sim: ClusterSimulation, count: int) -> list[list[int]]:
    """For each node the shards that others own."""
    owners = [sim.owner(sim.objects[ObjectRef("bucket", Shards(1, 1).key(index))], 0).name for index in range(count)]
    return [[index for index in range(count) if owners[index] != name] for name in sim.members]


@pytest.mark.parametrize(("room", "again"), [(8, 0), (0, 8)])
def test_a_node_keeps_what_others_own_where_it_has_room(room: int, again: int) -> None:
    count = 8
    layout = ClusterSimulation(SimNodes(2, machine(1), inf, inf), "cluster", read_by([[0]], count))
    others = lists_of_others(layout, count)
    # Room for what the nodes own, and for some more. Each node reads what it does not own.
    owned_most = max(map(len, others))
    for part in others:
        assert part
    blocks = owned_most + room
    sim = run(SimNodes(2, machine(blocks), inf, inf), "cluster", read_by(others, count, epochs=3))
    first, second, third = sim.epochs
    assert (first.read.origin_bytes, first.peer_bytes) == (count * MIB, count * MIB)
    assert (second.read.origin_bytes, third.read.origin_bytes) == (0, 0)
    if room:
        assert (second.peer_bytes, third.peer_bytes) == (again, again)
    else:
        # One of the two may own less than the other, and has room for that many.
        spare = blocks * 2 - count
        assert (again - spare) * MIB <= third.peer_bytes <= again * MIB


def test_each_node_by_itself_fetches_what_the_others_have() -> None:
    sim = run(SimNodes(2, machine(8), inf, inf), "by itself", read_by([[0, 1, 2, 3], [3, 2, 1, 0]], 4, epochs=2))
    assert [(epoch.read.traffic, epoch.peer_bytes) for epoch in sim.epochs] == [(2.0, 0), (0.0, 0)]


def test_a_job_on_several_nodes_is_one_job() -> None:
    """Each node reads the same third in each epoch, in a new order: no node fetches ahead what another one reads."""
    order = order_of("fresh", list(range(16)), 1, 1)

    def thirds(epoch: int) -> list[list[int]]:
        return [[16 * node + index for index in order(epoch)[0]] for node in range(3)]

    spec = JobSpec("train", Shards(48, 4 * MIB), thirds, 3, 8.0 * MIB)
    # All shards have room at their owners.
    nodes = replace(THREE, machine=replace(THREE.machine, capacity_bytes=90 * MIB))
    first, second, third = run(nodes, "cluster", spec).epochs
    assert [epoch.read.traffic for epoch in (first, second, third)] == [1.0, 0.0, 0.0]
    assert first.peer_traffic == pytest.approx(2 / 3, abs=0.1)


def test_a_loader_goes_on_while_its_buffer_has_room() -> None:
    time, went_on = Timeline(), []
    buffer = Buffer(time, 1.0, 1)

    def take(left: int) -> None:
        went_on.append(time.now)
        if left:
            buffer.take(2, lambda: take(left - 1))
        else:
            buffer.emptied(lambda: went_on.append(time.now))

    take(3)
    time.run()
    # Two seconds each. The second comes beside the first; the third has to wait until that is consumed.
    assert went_on == [0.0, 0.0, 2.0, 4.0, 6.0]


def owned_by(sim: ClusterSimulation, name: str, count: int) -> list[SimObject]:
    """The first `count` shards that this node owns."""
    return [of for of in sim.objects.values() if sim.owner(of, 0).name == name][:count]


def test_a_block_that_a_reader_waits_for_overtakes_at_its_owner() -> None:
    sim = ClusterSimulation(SimNodes(2, machine(16), inf, inf), "cluster", read_by([[0]], 16))
    edge, owner = sim.members.values()
    came: list[str] = []
    first, second, third = owned_by(sim, owner.name, 3)
    for of in (first, second, third):
        edge.origin.ask(of, 0, (PREFETCHED, 0.0), lambda of=of: came.append(of.ref.key))  # type: ignore[misc]
    sim.time.at(0.5, lambda: edge.origin.ask(third, 0, (AWAITED, 0.5)))
    sim.time.run()
    assert came == [first.ref.key, third.ref.key, second.ref.key]


def test_an_owner_without_room_relays_what_a_peer_prefetches() -> None:
    sim = ClusterSimulation(SimNodes(2, machine(1), inf, inf), "cluster", read_by([[0]], 16))
    edge, owner = sim.members.values()
    held, wanted = owned_by(sim, owner.name, 2)
    came: list[float] = []
    owner.origin.ask(held, 0, (AWAITED, 0.0), lambda: owner.store.use(held.blocks[0][0]))
    sim.time.at(2.0, lambda: edge.origin.ask(wanted, 0, (PREFETCHED, 2.0), lambda: came.append(sim.time.now)))
    sim.time.run()
    assert came == [pytest.approx(3.501)]
    assert edge.store.has(wanted.blocks[0][0])
    assert not owner.store.has(wanted.blocks[0][0])


def test_a_node_rests_after_a_prefetch_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: dict[str, list[float]] = {}
    plain = SimNode.refused

    def noted(node: SimNode, fill: SimFill) -> None:
        if node.cluster.owner(fill.of, fill.index) is not node:
            refused.setdefault(node.name, []).append(node.time.now)
        plain(node, fill)

    monkeypatch.setattr(SimNode, "refused", noted)
    # Only a known order is fetched near, and only where there seems to be room.
    monkeypatch.setattr(SimNode, "_near_bytes", lambda node: 2**40)
    run(THREE, "cluster", replace(job("fresh"), announced=True))
    assert refused, "no prefetch was without room: this test shows nothing"
    for times in refused.values():
        at = sorted(set(times))
        assert all(later - earlier >= 0.1 - 1e-9 for earlier, later in pairwise(at)), at


# -- for any job ------------------------------------------------------------------------------------------------------


@any_way
@pytest.mark.parametrize("kind", ["fresh", "repeated", "replacement"])
def test_no_byte_is_lost_or_made_up(way: Way, kind: OrderKind) -> None:
    spec = job(kind)
    sim = run(THREE, way, spec)
    nodes = list(sim.members.values())
    # All that left the bucket or a node came into a node.
    assert sum(node.received_bytes for node in nodes) == sim.bucket.sent_bytes + sim.peer_bytes
    assert sum(node.peer_bytes for node in nodes) == sim.peer_bytes
    # A prefetch that was under way as the job ended belongs to no epoch.
    reported = sum(epoch.read.origin_bytes for epoch in sim.epochs)
    assert reported <= sim.bucket.sent_bytes <= reported + 3 * 16 * MIB
    assert [epoch.read.opened for epoch in sim.epochs] == [48] * 3
    # No search goes on after the job.
    assert sim.time.now <= sum(epoch.read.took_s for epoch in sim.epochs) + 3.0
    for node in nodes:
        assert node.store.used_bytes_max <= node.store.capacity_bytes
        assert way != "direct" or node.store.used_bytes_max == 0
    # The accelerators are never busy for more than all of the time, and the bucket never gives more than its line.
    for epoch in sim.epochs:
        assert epoch.utilisation <= 1 + 1e-9
        assert epoch.read.origin_bytes <= 30 * MIB * epoch.read.took_s + MIB


@pytest.mark.parametrize(("way", "kind"), [("cluster", "fresh"), ("by itself", "repeated")])
def test_one_node_equals_the_simulator_of_one(way: Way, kind: OrderKind) -> None:
    # With this latency nothing happens at the very moment of a tick: the order of the two would be chance.
    spec, one = job(kind), Machine(60 * MIB, 50.0 * MIB, 0.0503, MIB, step_s=0.1)
    cluster = run(SimNodes(1, one, inf, inf, buffered_blocks=0), way, spec).epochs
    for found, wanted in zip(cluster, Simulation(one, "epoch", [spec]).run(), strict=True):
        assert found.read == replace(wanted, stall_s=found.read.stall_s)
        assert found.read.stall_s / 4 == pytest.approx(wanted.stall_s)
        assert found.peer_bytes == 0


def test_a_run_gives_the_same_result_each_time() -> None:
    spec = job("fresh", shards=24, epochs=2)
    assert run(THREE, "cluster", spec).epochs == run(THREE, "cluster", spec).epochs


# -- the command ------------------------------------------------------------------------------------------------------


def simulate(*words: str) -> str:
    result = CliRunner().invoke(SIMULATE, ["simulate", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_row_for_each_way_and_epoch() -> None:
    rows = json.loads(simulate(*SMALL, "--json"))
    assert [(row["way"], row["epoch"]) for row in rows] == [(way, epoch) for way in WAYS for epoch in (1, 2)]
    assert [row["speed"] for row in rows[4:]] == [1.0, 1.0]
    for row, direct in zip(rows, rows[4:] * 3, strict=True):
        assert row["speed"] == pytest.approx(direct["seconds"] / row["seconds"])
    # A node without other nodes to ask fetches what they have.
    assert rows[0]["peers"] > 0 == rows[2]["peers"] == rows[4]["peers"]
    text = simulate(*SMALL)
    assert text.split()[:8] == ["cache", "way", "epoch", "GPU", "seconds", "bucket", "peers", "speed"]
    assert len(text.splitlines()) == 7


def test_images_are_no_events_of_their_own() -> None:
    """The bytes that a GPU takes a second count, in whatever pieces they come."""
    assert simulate(*SMALL, "--images", "1000", "--image-size", "100kB") == simulate(
        *SMALL, "--images", "100000", "--image-size", "1kB"
    )


@pytest.mark.parametrize("caches", ["50%", "25%,50%"])
def test_a_picture_of_epochs_or_sizes(tmp_path: Path, caches: str) -> None:
    simulate(*SMALL, "--cache", caches, "--plot", str(tmp_path / "plot.svg"))
    drawn = (tmp_path / "plot.svg").read_text()
    assert drawn.startswith("<?xml")


def test_a_picture_without_matplotlib_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(SIMULATE, ["simulate", *SMALL, "--plot", str(tmp_path / "plot.svg")])
    assert result.exit_code == 2
    assert "--plot needs matplotlib" in result.output


@pytest.mark.parametrize(("text", "bytes_s"), [
    ("25Gbit", 3.125e9), ("25 Gbit/s", 3.125e9), ("10GB/s", 1e10), ("10GB", 1e10), ("1.5GiB/s", 1.5 * 2**30),
    ("100Mbit", 1.25e7), ("8bit", 1.0), ("500kB", 5e5), ("1KiB", 1024.0),
])  # fmt: skip
def test_rates_are_bits_or_bytes(text: str, bytes_s: float) -> None:
    assert parse_rate("--link", text) == bytes_s


# Gb is neither: some mean bits by it, and others bytes.
@pytest.mark.parametrize("text", ["fast", "10", "25Gb", "0Gbit", "-1GB/s", "10GB/min", "nanGB", "", "1e9B", "25gbit"])
def test_what_is_no_rate_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"--link .*: must be bits or bytes a second, such as 25Gbit or 10GB/s"):
        parse_rate("--link", text)


@pytest.mark.parametrize(("words", "said"), [
    ([*SMALL, "--link", "fast"], "--link fast"), ([*SMALL, "--bucket", "10Gb"], "--bucket 10Gb"),
    ([*SMALL, "--connection", "0B"], "--connection 0B"), ([*SMALL, "--images", "0"], "--images 0"),
    ([*SMALL, "--images", "nan"], "--images nan"), ([*SMALL, "--image-size", "0"], "--image-size 0"),
    ([*SMALL, "--cache", "3%"], "--cache 3%: each of 2 nodes must have room for a block"),
    ([*SMALL, "--policy", "lru"], "--policy does not go with --nodes"),
    ([*SMALL, "--bandwidth", "2x"], "--bandwidth does not go with --nodes"),
    ([*SMALL, "--switch"], "--switch does not go with --nodes"),
    ([*SMALL, "proxy.log"], "a log does not go with --nodes"),
    (["--link", "25Gbit"], "--link needs --nodes"), (["--gpus-per-node", "8"], "--gpus-per-node needs --nodes"),
])  # fmt: skip
def test_invalid_options_are_refused_by_name(words: list[str], said: str) -> None:
    result = CliRunner().invoke(SIMULATE, ["simulate", *words])
    assert result.exit_code == 2
    assert said in result.output


def test_an_announced_order_reaches_all_members_and_nothing_stays_on_its_way() -> None:
    spec = job("fresh", readers=3)
    nodes = replace(THREE, machine=replace(THREE.machine, capacity_bytes=20 * MIB))
    sims = [run(nodes, "cluster", replace(spec, announced=announced)) for announced in (False, True)]
    unknown_s, announced_s = (sum(epoch.read.stall_s for epoch in sim.epochs[1:]) for sim in sims)
    assert announced_s < 0.6 * unknown_s
    for node in sims[1].members.values():
        assert node.planner is not None
        assert node.planner.outstanding.blocks == 0


def test_a_node_keeps_what_it_reads_again_soonest_of_others_blocks() -> None:
    """Each of four nodes reads its own quarter in each epoch, in the same order, and has room for six tenths more than
    it owns: the row `static-tight` of `make bench-cluster`."""
    nodes = SimNodes(4, Machine(int(0.4 * 256 * MIB), 1e9, 0.05, MIB), 1e9, 1e9)
    epochs = run(nodes, "cluster", JobSpec(
        "train", Shards(256, MIB), order_of("repeated", list(range(256)), 4, 1), 3, 100.0 * MIB
    )).epochs  # fmt: skip
    assert max(epoch.peer_traffic for epoch in epochs[1:]) <= 0.30
    assert sum(epoch.read.origin_bytes for epoch in epochs[1:]) == 0


@pytest.mark.parametrize(("objects", "announced", "most"), [(1, False, 1.3), (16, False, 1.45), (16, True, 1.25)])
def test_nodes_that_read_the_same_at_once_ask_the_bucket_once(objects: int, announced: bool, most: float) -> None:
    """Weights of 2 GB on eight nodes: the row `weights` of `make bench-cluster`, if owners send their blocks one after
    the other. The fullest owner sends 1.06 times the data, and each node waits for it in each window. An
    announced order looks past the end of an object."""
    size, link = 2_000_000_000 // objects, 60e6
    nodes = SimNodes(8, Machine(4_000_000_000, inf, 0.03, 8 * MIB), link, 1e9)
    spec = JobSpec("w", Shards(objects, size, "w"), lambda _: [list(range(objects))] * 8, 1, 1e10, announced=announced)
    (epoch,) = run(nodes, "cluster", spec).epochs
    assert epoch.read.origin_bytes == objects * size
    assert epoch.peer_bytes == 7 * objects * size
    assert epoch.read.took_s <= most * objects * size / link
