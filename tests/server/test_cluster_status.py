"""The cluster as people see it: `outrider cluster`, the admin port, and both on a node alone."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.child import free_ports
from tests.support.nodes import Nodes, until
from tests.support.proxy import Command, Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "seen"
KEY = "train-000000.tar"
BLOCK, BLOCKS = 64 * 1024, 16


@pytest.fixture(scope="module")
def nodes(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two members, of which the first one has read an object that both own blocks of."""
    bucket.store(NAME, {KEY: bytes(BLOCK * BLOCKS)})
    with Nodes(bucket, tmp_path_factory.mktemp("nodes"), 2, block_size=str(BLOCK)) as running:
        assert ask(running[0].address, "GET", f"/{NAME}/{KEY}").status == 200
        # The bytes that were sent are counted at the end of the reply.
        until(lambda: running[1].cluster["members"][0]["bytes_out"] > 0, "the count of bytes")
        yield running


def admin_of(nodes: Nodes, index: int) -> str:
    return nodes[index].admin.removeprefix("http://")


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    return Command(bucket, tmp_path)


def metric(nodes: Nodes, sample: str) -> float:
    """As the first node exports it."""
    host, _, port = admin_of(nodes, 0).rpartition(":")
    lines = ask((host, int(port)), "GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{sample} ")).rpartition(" ")[2])


def test_a_node_alone_says_so(bucket: Bucket, command: Command) -> None:
    with Proxy(bucket) as proxy:
        admin = proxy.outrider.admin
        done = command.run("cluster", "--admin", admin)
        assert (done.returncode, done.stdout) == (
            0, "This node caches by itself: it was started without --peers.\n",
        )  # fmt: skip
        assert json.loads(command.run("cluster", "--json", "--admin", admin).stdout) is None
        who = command.run("cluster", "who", f"s3://{NAME}/a", "--admin", admin)
        assert (who.returncode, who.stdout) == (0, done.stdout)
        assert proxy.status()["cluster"] is None
        host, _, port = admin.rpartition(":")
        assert ask((host, int(port)), "GET", f"/cluster/who?object=s3://{NAME}/a").status == 404
        listed = command.run("ls", "--cluster", "--admin", admin)
        assert (listed.returncode, listed.stdout) == (0, done.stdout)
        assert ask((host, int(port)), "GET", "/cluster/datasets").status == 404
        assert "cluster" not in command.run("stats", "--once", "--admin", admin).stdout


@pytest.mark.parametrize("words", [("who",), ("s3://a/b",)])
def test_wrong_words_are_wrong_use(command: Command, words: tuple[str, ...]) -> None:
    done = command.run("cluster", *words)
    assert done.returncode == 2
    assert "cluster who s3://BUCKET/KEY" in " ".join(done.stderr.replace("│", "").split())


def test_the_members_are_shown_with_what_came_from_each(nodes: Nodes, command: Command) -> None:
    done = command.run("cluster", "--admin", admin_of(nodes, 0))
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    ring = nodes[0].cluster["ring"]
    assert first.startswith(f"node-1 at {nodes[0].peer_address}, zone none, ring {ring}, members from file:")
    assert second.startswith("2 of 2 members alive; ")
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith("node-")}
    assert rows["node-2"][1:4] == [nodes[1].peer_address, "-", "alive"]
    assert rows["node-1"][-7:] == [*["-"] * 6, "same"], "what came from itself"
    report = json.loads(command.run("cluster", "--json", "--admin", admin_of(nodes, 0)).stdout)
    mine, theirs = report["members"]
    assert (mine["name"], mine["is_me"], theirs["name"], theirs["is_me"]) == ("node-1", True, "node-2", False)
    assert metric(nodes, 'outrider_peer_bytes_total{direction="in",peer="node-2"}') == theirs["bytes_in"] > 0
    assert theirs["requests"] > 0
    assert theirs["latency_s"]["p50"] > 0
    assert nodes[1].cluster["members"][0]["bytes_out"] == theirs["bytes_in"]
    assert report["near_bytes"] > 0
    assert f"{theirs['requests']}" in rows["node-2"]
    assert metric(nodes, 'outrider_peer_members{state="alive"}') == 1


@contextmanager
def twins(bucket: Bucket, directory: Path) -> Iterator[tuple[Proxy, Proxy, list[str]]]:
    """Two members of one name that know of each other, and their addresses."""
    (directory / "peers.key").write_text("k" * 64)
    (directory / "peers.key").chmod(0o600)
    at = [f"127.0.0.1:{port}" for port in free_ports(2)]
    (directory / "members").write_text("\n".join(at))
    shared: dict[str, Any] = {
        "peers": f"file:{directory / 'members'}", "peer_key_file": str(directory / "peers.key"), "peer_name": "twin",
    }  # fmt: skip
    with Proxy(bucket, peer_listen=at[0], **shared) as first, Proxy(bucket, peer_listen=at[1], **shared) as second:
        at.sort()
        for proxy in (first, second):
            until(lambda proxy=proxy: proxy.status()["cluster"]["names_used_twice"] == {"twin": at}, "two of the name")
        yield first, second, at


def test_a_name_that_is_used_twice_is_said_loudly(
    bucket: Bucket, command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At each of both: in the log, by `cluster`, and by `stats`. See test_doctor_peers for the doctor."""
    caplog.set_level("ERROR")
    with twins(bucket, tmp_path) as (first, second, at):
        for proxy in (first, second):
            shown = command.run("cluster", "--admin", proxy.outrider.admin).stdout
            assert f"WARNING: twin is the name of several members: {', '.join(at)}. Give each" in shown
            assert (
                "twin is the name of several" in command.run("stats", "--once", "--admin", proxy.outrider.admin).stdout
            )
    said = [vars(record) for record in caplog.records if record.message == "members changed"]
    assert [(each["levelname"], each["change"], each["peer"]) for each in said] == [
        ("ERROR", "name used twice", "twin")
    ] * 2
    for each in said:
        assert all(address in each["detail"] for address in at)
        assert "--peer-name" in each["detail"]


def test_the_owners_of_an_object_are_the_same_at_each_member(nodes: Nodes, command: Command) -> None:
    url = f"s3://{NAME}/{KEY}"
    reports = [
        json.loads(command.run("cluster", "who", url, "--json", "--admin", admin_of(nodes, index)).stdout)
        for index in range(2)
    ]
    assert (reports[0]["size"], reports[0]["blocks"]) == (BLOCK * BLOCKS, BLOCKS)
    assert [block["owners"] for block in reports[0]["owners"]] == [block["owners"] for block in reports[1]["owners"]]
    assert {block["owners"][0] for block in reports[0]["owners"]} == {"node-1", "node-2"}
    owned = {block["index"] for block in reports[1]["owners"] if block["owners"][0] == "node-2"}
    assert {block["index"] for block in reports[1]["owners"] if block["here"]} == owned, (
        "only owned blocks were asked for"
    )
    shown = command.run("cluster", "who", url, "--admin", admin_of(nodes, 0)).stdout
    assert f"{url}: 1.0 MB in 16 blocks of 65.5 kB, version known by " in shown
    for name, share in reports[0]["shares"].items():
        assert any(line.split()[:2] == [name, str(share["blocks"])] for line in shown.splitlines())
    for wrong in (f"s3://{NAME}/nothing", "s3://nothing"):
        done = command.run("cluster", "who", wrong, "--admin", admin_of(nodes, 0))
        assert (done.returncode, done.stdout) == (1, "")
        assert wrong in done.stderr


def test_the_status_and_stats_show_the_cluster(nodes: Nodes, command: Command) -> None:
    status = nodes[0].status()
    assert status["served_bytes"]["peer"] > 0
    (line,) = [
        line for line in command.run("stats", "--once", "--admin", admin_of(nodes, 0)).stdout.splitlines()
        if line.startswith("cluster")
    ]  # fmt: skip
    assert "2 of 2 members alive" in line
    answer = ask(nodes[0].address, "GET", "/_outrider/status.json")
    assert json.loads(answer.body)["cluster"]["name"] == "node-1"


def test_the_datasets_are_shown_with_the_share_of_each_member(nodes: Nodes, command: Command) -> None:
    report = json.loads(command.run("ls", "--cluster", "--json", "--admin", admin_of(nodes, 1)).stdout)
    assert (report["name"], report["members"], report["silent"]) == ("node-2", ["node-1", "node-2"], [])
    (row,) = report["datasets"]
    assert (row["bucket"], row["bytes"], row["held"]) == (NAME, BLOCK * BLOCKS, 1.0)
    assert row["copies_bytes"] == row["members"]["node-1"]["copies_bytes"] > 0, "the first one keeps what it read"
    assert row["members"]["node-1"]["share"] == 1.0
    shown = command.run("ls", "--cluster", "--admin", admin_of(nodes, 0))
    assert shown.returncode == 0, shown.stderr
    head, line, _, answered = shown.stdout.splitlines()
    assert head.split() == ["dataset", "objects", "size", "held", "copies", "node-1", "node-2"]
    share = f"{100 * row['members']['node-2']['share']:.0f}"
    assert line.split()[-4:] == ["100", "%", share, "%"]
    assert answered == "2 of 2 members answered."
    assert (
        "No member has a dataset with 'other'"
        in command.run("ls", "other", "--cluster", "--admin", admin_of(nodes, 0)).stdout
    )
