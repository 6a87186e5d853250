"""`outrider doctor` in a cluster: the key, the list, and hellos to real members."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.cli.doctor.finding import Diagnosis, Level
from outrider.cli.doctor.peer_checks import (
    Greeted,
    check_answer,
    check_key,
    check_names,
    check_own_entry,
    peer_findings,
)
from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.settings import Settings, load
from tests.support.nodes import Node, Nodes
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

ME = Member("a", "10.0.0.1:9482", "z", 1, "c1")
LISTED = ListedMember("10.0.0.2:9482", "b")


@pytest.fixture(scope="module")
def nodes(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(bucket, tmp_path_factory.mktemp("nodes"), 2) as running:
        yield running


def settings_of(nodes: Nodes, bucket: Bucket, **others: object) -> Settings:
    """Those of the first member."""
    flags = {
        "origin": bucket.endpoint, "region": "us-east-1", "peers": f"file:{nodes.members}",
        "peer_listen": nodes[0].peer_address, "peer_key_file": nodes.key, "peer_name": nodes[0].name, **others,
    }  # fmt: skip
    return load(flags, environ={})


def found(settings: Settings, *, is_running: bool = True) -> list[Diagnosis]:
    async def collected() -> list[Diagnosis]:
        return [finding async for finding in peer_findings(settings, is_running=is_running, environ={})]

    return asyncio.run(collected())


def refused(node: Node) -> list[str]:
    host, _, port = node.admin.removeprefix("http://").rpartition(":")
    lines = ask((host, int(port)), "GET", "/metrics").body.decode().splitlines()
    return [line for line in lines if line.startswith("outrider_peer_refused_total{")]


def test_all_is_well_and_the_members_take_no_notice(nodes: Nodes, bucket: Bucket) -> None:
    findings = found(settings_of(nodes, bucket))
    assert [(finding.name, finding.level) for finding in findings] == [
        ("peer key", Level.OK), ("members", Level.OK), ("own entry", Level.OK), ("member", Level.OK),
        ("member", Level.OK),
    ]  # fmt: skip
    assert f"node-2 at {nodes[1].peer_address}: answers" in findings[-1].text
    # The members are notified of a write before it is sent: they would refuse the messages of this one if doctor had
    # used its name.
    bucket.make_bucket("doctor-peers")
    assert ask(nodes[0].address, "PUT", "/doctor-peers/key", [("content-length", "1")], b"x").status == 200
    assert refused(nodes[1]) == []
    # A node that does not run is not greeted.
    assert len(found(settings_of(nodes, bucket), is_running=False)) == 4
    for node in nodes.all:
        assert {member["name"] for member in node.cluster["members"]} == {"node-1", "node-2"}
        assert node.lines("writes of a member may have been missed") == []


def test_another_key_and_another_cluster_id_are_named(nodes: Nodes, bucket: Bucket, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("x" * 40)
    other.chmod(0o600)
    for wrong, cause, flag in (
        ({"peer_key_file": other}, "another key", "--peer-key-file"),
        ({"block_size": "1MiB"}, "another cluster id", "--block-size"),
    ):
        last = found(settings_of(nodes, bucket, **wrong))[-1]
        assert last.level is Level.FAIL
        assert cause in last.text
        assert flag in last.do


def test_a_node_that_is_not_listed_and_a_member_that_is_not_there(nodes: Nodes, bucket: Bucket, tmp_path: Path) -> None:
    members = tmp_path / "members"
    members.write_text(f"{nodes[1].peer_address}\n127.0.0.1:1\n")
    findings = found(settings_of(nodes, bucket, peers=f"file:{members}"))
    own, *answers = [finding for finding in findings if finding.name in ("own entry", "member")]
    assert own.level is Level.FAIL
    assert f"node-1 at {nodes[0].peer_address} is not among the members" in own.text
    (silent,) = [answer for answer in answers if answer.level is Level.FAIL]
    assert silent.text.startswith("127.0.0.1:1: no answer to a hello")
    assert "TCP port 1 is open" in silent.do


def test_a_wrong_line_of_the_list_is_shown(nodes: Nodes, bucket: Bucket, tmp_path: Path) -> None:
    members = tmp_path / "members"
    members.write_text("10.0.0.1\n")
    last = found(settings_of(nodes, bucket, peers=f"file:{members}"))[-1]
    assert (last.name, last.level) == ("members", Level.FAIL)
    assert last.text.startswith(f"{members}:1: ")


def test_a_key_file_that_is_not_there_or_that_others_can_read(nodes: Nodes, bucket: Bucket, tmp_path: Path) -> None:
    (missing,) = found(settings_of(nodes, bucket, peer_key_file=tmp_path / "nothing"))
    assert (missing.name, missing.level) == ("peer key", Level.FAIL)
    key = tmp_path / "key"
    key.write_text("x" * 40)
    settings = settings_of(nodes, bucket, peer_key_file=key)
    for mode, level in ((0o600, Level.OK), (0o640, Level.OK), (0o644, Level.WARN), (0o620, Level.WARN)):
        key.chmod(mode)
        assert check_key(settings, 1).level is level, oct(mode)
    assert found(load({"origin": bucket.endpoint}, environ={})) == [], "without peers nothing is checked"


# -- answers --------------------------------------------------------------------------------------------------------


def hello(name: str = "b", boot: int = 7) -> Hello:
    return Hello(Member(name, "10.0.0.2:9482", "z", 1, "c1"), boot, "", 0, time.time())


def answer(
    received: Hello | None, *, why: str = "", skew_s: float | None = 0.0, entry: ListedMember = LISTED
) -> Greeted:
    return Greeted(entry, received, PeerFailed(why) if why else None, skew_s)


@pytest.mark.parametrize(
    ("given", "level", "text", "do"),
    [
        (answer(hello()), Level.OK, "answers, zone z", ""),
        (answer(replace(hello(), is_ready=False)), Level.OK, "reads its index", ""),
        (answer(replace(hello(), is_leaving=True)), Level.OK, "is about to stop", ""),
        (answer(hello("c")), Level.FAIL, "listed as b, and c answers", "--peer-name"),
        (answer(replace(hello(), member=replace(ME, name="b", wire=(3, 4)))), Level.FAIL, "versions 3 to 4", "next"),
        (answer(hello(), skew_s=90.0), Level.WARN, "90 s ahead of this one's", "chrony"),
        (answer(hello(), skew_s=-90.0), Level.WARN, "90 s behind this one's", "chrony"),
        (answer(None, why="refused", skew_s=-400.0), Level.FAIL, "its clock is 400 s behind", "chrony"),
        (answer(None, why="refused", skew_s=200.0), Level.FAIL, "another key than /run/key here", "Copy /run/key"),
        (answer(None, why="refused", skew_s=None), Level.FAIL, "another key than /run/key here", "--peer-key-file"),
        (answer(None, why="connect", skew_s=None), Level.FAIL, "no answer to a hello: connect", "TCP port 9482"),
        (answer(None, why="late", skew_s=None), Level.FAIL, "no answer to a hello: late", "the key in /run/key"),
    ],
)  # fmt: skip
def test_an_answer_says_what_is_wrong_and_what_to_do(given: Greeted, level: Level, text: str, do: str) -> None:
    finding = check_answer(given, ME, Path("/run/key"))
    assert finding.level is level
    assert text in finding.text
    assert do in finding.do


def test_a_name_that_two_processes_have_is_reported() -> None:
    elsewhere = ListedMember("10.0.0.3:9482")
    twice = [answer(hello()), answer(hello(boot=8), entry=elsewhere)]
    (finding,) = check_names(ME, twice, is_running=True)
    assert "b is the name of several members: 10.0.0.2:9482, 10.0.0.3:9482" in finding.text
    assert check_names(ME, [answer(hello()), answer(hello(), entry=elsewhere)], is_running=True) == []
    mine = [answer(hello("a"), entry=elsewhere)]
    assert check_names(ME, mine, is_running=True) == [], "one process, at another address than it knows of"
    assert len(check_names(ME, mine, is_running=False)) == 1


def test_the_own_entry_may_be_known_by_address_by_name_or_by_its_answer() -> None:
    for entry in (ListedMember(ME.address), ListedMember("other:1", "a"), ListedMember(ME.address, "a")):
        assert check_own_entry(ME, [LISTED, entry], [], "file:x").level is Level.OK
    assert check_own_entry(ME, [LISTED], [answer(hello("a"), entry=ListedMember("x:1"))], "file:x").level is Level.OK
    assert check_own_entry(ME, [LISTED], [answer(hello())], "file:x").level is Level.FAIL
    assert "--peer-name z" in check_own_entry(ME, [ListedMember(ME.address, "z")], [], "file:x").do
