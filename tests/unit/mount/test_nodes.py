"""The names of a mount: the memory that they take, and that none is lost while rows come and go."""

from __future__ import annotations

import gc
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.s3.list_page import ListedObject
from outrider.mount.file_rows import DEAD_BYTES_MIN
from outrider.mount.listed import ObjectFacts
from outrider.mount.listings import DirectoryListing
from outrider.mount.nodes import ROOT, Directory, File, MountNodes
from tests.support.held_memory import held_bytes

# Names of ImageNet have some 25 letters; with them a file takes 140 to 150 bytes. Objects of Python took 500.
BYTES_PER_NAME_MAX = 150
PAGE = 1000


def page_of(first: int, count: int, folder: str) -> list[ListedObject]:
    return [
        ListedObject(
            f"{folder}/n01440764_{number}.JPEG", 100_000 + number, f'"{number:032x}"', "2026-01-06T00:00:00.000Z"
        )
        for number in range(first, first + count)
    ]


def filled(pages: int) -> tuple[MountNodes, int]:
    nodes = MountNodes("")
    directory = nodes.directory(nodes.root, "n01440764")
    gc.collect()
    tracemalloc.start()
    try:
        listing = DirectoryListing(nodes, directory, 1.0)
        for page in range(pages):
            listing.take(page_of(page * PAGE, PAGE, "n01440764"), (), 1.0 + page)
        listing.done()
        gc.collect()
        return nodes, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_name_takes_a_few_words() -> None:
    (_, few), (nodes, many) = filled(3), filled(6)
    assert (many - few) / (3 * PAGE) < BYTES_PER_NAME_MAX
    assert len(nodes) == 6 * PAGE + 2


def facts(content: int) -> ObjectFacts:
    return ObjectFacts(content, f"{content:032x}" if content % 2 else f"{content}-2", 1_767_657_600 + content)


NAMES = st.sampled_from(["a", "b", "c", "é", "d" * 200])
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "remove", "folder", "look", "forget", "list"]), NAMES, st.integers(1, 4)),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_numbers_name_one_version_as_long_as_the_kernel_knows_them(steps: list[tuple[str, str, int]]) -> None:
    nodes = MountNodes("p/")
    # By name: the version of a file, or None for a directory. By number: what the kernel got, and how often.
    there: dict[str, int | None] = {}
    known: dict[int, tuple[str, int | None, int]] = {}
    # No two versions ever had one number.
    versions: dict[int, tuple[str, int | None]] = {}
    for number, (step, name, content) in enumerate(steps, 1):
        if step == "put" and there.get(name, 0) is not None:
            nodes.file(nodes.root, name, facts(content), float(number), settled=True)
            there[name] = content
        elif step == "folder":
            nodes.directory(nodes.root, name)
            there.pop(name, None) if there.get(name, 0) is not None else None
            there.setdefault(name, None)
        elif step == "remove":
            nodes.remove(nodes.root, name)
            there.pop(name, None)
        elif step == "list":
            listing = DirectoryListing(nodes, nodes.root, float(number))
            listing.take([], [f"p/{each}/" for each, its in there.items() if its is None], float(number))
            listing.done()
            there = {each: its for each, its in there.items() if its is None}
        elif step == "look" and (node := nodes.child(nodes.root, name)) is not None:
            nodes.shown(node)
            version = name, there[name]
            assert versions.setdefault(node.number, version) == version
            known[node.number] = (*version, known.get(node.number, (*version, 0))[2] + 1)
        elif step == "forget" and known:
            forgotten = min(known)
            nodes.forgotten(forgotten, known.pop(forgotten)[2])
        check(nodes, there, known)


def check(nodes: MountNodes, there: dict[str, int | None], known: dict[int, tuple[str, int | None, int]]) -> None:
    members = {member.name: member for member in map(nodes.__getitem__, nodes.children(nodes.root))}
    assert members.keys() == there.keys()
    numbers = {member.number for member in members.values()}
    for name, content in there.items():
        member = members[name]
        assert nodes.child(nodes.root, name) is member
        assert isinstance(member, Directory if content is None else File)
        if isinstance(member, File):
            assert member.facts == facts(content or 0)
    for number, (name, content, _) in known.items():
        node = nodes[number]
        assert (node.number, node.name) == (number, name)
        if isinstance(node, File):
            assert (node.key, node.size) == (f"p/{name}", content)
    assert len(nodes) == len(numbers | known.keys() | {ROOT})
    sizes = {number: node.size for number in numbers | known.keys() if isinstance(node := nodes[number], File)}
    assert nodes.files.known_bytes == sum(sizes.values())


def test_no_number_is_used_twice() -> None:
    nodes, numbers = MountNodes(""), list[int]()
    for content in range(5):
        numbers.append(nodes.file(nodes.root, "a", facts(content), 1.0, settled=True).number)
        nodes.remove(nodes.root, "a")
    assert len(set(numbers)) == 5
    assert len(nodes.files.sizes) <= 2


def test_the_letters_of_names_that_have_gone_take_no_room_for_long() -> None:
    nodes, empty = MountNodes(""), held_bytes(MountNodes(""))
    for number in range(3000):
        nodes.file(nodes.root, f"{number:0200}", facts(1), 1.0, settled=True)
        nodes.remove(nodes.root, f"{number - 2:0200}")
    assert held_bytes(nodes) < empty + 3 * DEAD_BYTES_MIN
    assert [nodes[number].name for number in nodes.children(nodes.root)] == [
        f"{number:0200}" for number in (2998, 2999)
    ]


def test_an_open_directory_shows_the_version_that_took_the_place_of_another_one() -> None:
    nodes = MountNodes("")
    for name in ("a", "b"):
        nodes.file(nodes.root, name, facts(1), 1.0, settled=True)
    numbers = nodes.opened(nodes.root)
    nodes.file(nodes.root, "a", facts(2), 2.0, settled=True)
    nodes.remove(nodes.root, "b")
    shown = [nodes.member(nodes.root, number) for number in numbers]
    assert [None if node is None else (node.name, node.attributes.size) for node in shown] == [("a", 2), None]
    nodes.closed()
    assert nodes.member(nodes.root, numbers[0]) is None
