"""The lines of a file of members, and the moments at which it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.adapters.cluster.file_source import parse
from outrider.adapters.cluster.member_lists import SourceUnreachable
from outrider.core.cluster.member import ListedMember
from tests.support.logs import logged
from tests.support.member_sources import PORT, FileWorld, SetMember

A, B = SetMember("10.0.0.1", "n1"), SetMember("10.0.0.2", "n2")


def test_a_line_is_an_address_and_facts_in_any_order() -> None:
    content = (
        b"# the cache nodes\n"
        b"10.0.0.1:9482\n"
        b"\n"
        b"  node-2:9482 zone=b name=node-2   # of the second rack\n"
        b"[fd00::3]:9482 weight=2TiB name=a#b.. #x\n"
    ).replace(b"a#b..", b"n3")
    assert parse(content, "peers") == [
        ListedMember("10.0.0.1:9482"), ListedMember("node-2:9482", "node-2", "b"),
        ListedMember("[fd00::3]:9482", "n3", "", 2 * 2**40),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("10.0.0.1", "10.0.0.1: must be HOST:PORT"),
        ("10.0.0.1:0", "10.0.0.1:0: must be HOST:PORT at which the other members reach this one"),
        ("0.0.0.0:9482", "0.0.0.0:9482: must be HOST:PORT at which"),
        ("fd00::3:9482", "brackets"),
        ("h:1 h:2", "h:2: write HOST:PORT [name=NAME] [zone=ZONE] [weight=SIZE]"),
        ("h:1 rack=7", "rack=7: write HOST:PORT [name=NAME] [zone=ZONE] [weight=SIZE]"),
        ("h:1 name=", "name=: must be letters"),
        ("h:1 zone=a;b", "zone=a;b: must be letters"),
        ("h:1 name=a name=b", "name=b: name is given twice"),
        ("h:1 weight=lots", "lots: is not a size"),
        ("h:1 weight=50%", "50%: must be a number of bytes here"),
        ("h:1 name=\xff", "must be letters"),
    ],
)
def test_a_wrong_line_is_reported_with_file_and_line(line: str, problem: str) -> None:
    content = f"# two good ones\nh:8\n{line}\n".encode("latin-1")
    with pytest.raises(SourceUnreachable) as wrong:
        parse(content, "/etc/peers")
    assert str(wrong.value).startswith("/etc/peers:3: ")
    assert problem in str(wrong.value)


def test_one_name_for_two_addresses_is_wrong_and_a_line_given_twice_is_not() -> None:
    with pytest.raises(SourceUnreachable, match="/etc/peers: one name for two members: n1"):
        parse(b"h:1 name=n1\nh:2 name=n1\nh:3\n", "/etc/peers")
    assert len(parse(b"h:1 name=n1\nh:1 name=n1\n", "/etc/peers")) == 2


async def test_a_wrong_line_leaves_the_last_good_list_and_is_logged_once(tmp_path: Path) -> None:
    world = FileWorld(tmp_path / "peers")
    world.set_members([A])
    with logged("outrider.adapters.cluster") as records:
        async with world.watched.reading(world.source()):
            await world.watched.next_list()
            world.write("10.0.0.2\n")
            await world.watched.failed(3)
            assert [vars(record)["error"] for record in records] == [
                f"{tmp_path / 'peers'}:1: 10.0.0.2: must be HOST:PORT (port 0: any free one)"
            ]
            world.set_members([B])
            assert await world.watched.next_list() == (world.expected(B),)


async def test_the_file_is_read_again_each_second_also_while_it_is_wrong(tmp_path: Path) -> None:
    world = FileWorld(tmp_path / "peers")
    world.set_members([A])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        assert [await world.watched.sleeps.end_next() for _ in range(3)] == [1.0, 1.0, 1.0]
        world.away()
        waits = [await world.watched.sleeps.end_next() for _ in range(4)]
        assert max(waits) <= 1.0


async def test_a_change_within_one_tick_of_the_files_date_is_seen(tmp_path: Path) -> None:
    """The same inode, size and date: the content is what counts."""
    import os

    path = tmp_path / "peers"
    world = FileWorld(path)
    path.write_text(f"10.0.0.1:{PORT}\n")
    before = path.stat()
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        with path.open("r+") as file:
            file.write(f"10.0.0.2:{PORT}\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert [entry.address for entry in await world.watched.next_list()] == [f"10.0.0.2:{PORT}"]


async def test_a_file_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    world = FileWorld(tmp_path / "peers")
    (tmp_path / "peers").symlink_to("/dev/zero")
    with logged("outrider.adapters.cluster") as records:
        async with world.watched.reading(world.source()):
            await world.watched.failed(1)
    assert "is longer than" in vars(records[0])["error"]
