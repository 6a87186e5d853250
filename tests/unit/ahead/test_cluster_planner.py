"""The planners of a cluster: a job on several nodes is one job, and each member fetches ahead what it owns."""

from __future__ import annotations

from random import Random

from outrider.core.ahead.planner import Planner
from outrider.core.model import BlockKey, Extent, ObjectRef, ObjectVersion

BLOCK = 10
SIZE = 2 * BLOCK
COUNT = 64
REFS = [ObjectRef("b", f"d/{number:06d}.tar") for number in range(COUNT)]


def planner_of(mine: int = 0b01, capacity_bytes: int = 1_000_000) -> Planner:
    """The planner of a member that owns these blocks of each object, and knows all names."""
    planner = Planner(capacity_bytes, BLOCK)
    planner.join(lambda client, ref, size: None, lambda ref, blocks: mine & ((1 << blocks) - 1), lambda: 1_000_000)
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in REFS])
    return planner


def read_here(planner: Planner, ref: ObjectRef, now: float, client: str = "a") -> None:
    planner.requested(client, ref, SIZE, Extent(0, SIZE), now)
    planner.sent(client, ref, now)


def read_on_peer(planner: Planner, ref: ObjectRef, now: float, member: str = "m") -> None:
    planner.opened_on_peer(member, f"{member}/a", ref, SIZE, 1, now)


def land(planner: Planner, ref: ObjectRef, *blocks: int) -> None:
    for index in blocks:
        planner.added(BlockKey(ref.key.encode().ljust(16), index), ObjectVersion(ref, '"e"', SIZE))


def wanted(planner: Planner, now: float, free_bytes: int = 1_000_000) -> dict[ObjectRef, tuple[int, ...]]:
    return {want.ref: want.blocks for want in planner.wants(now, free_bytes, 1000)}


def test_a_member_reports_the_objects_that_its_clients_begin() -> None:
    planner, reported = Planner(1000, BLOCK), list[tuple[str, ObjectRef, int]]()
    planner.join(
        lambda client, ref, size: reported.append((client, ref, size)), lambda ref, blocks: 0, lambda: 1_000_000
    )
    planner.requested("a", REFS[0], SIZE, Extent(0, BLOCK), 1.0)
    planner.requested("a", REFS[0], SIZE, Extent(BLOCK, SIZE), 1.1)
    read_on_peer(planner, REFS[1], 1.2)
    assert reported == [("a", REFS[0], SIZE)], "once for each object, and nothing that another member reported"


def test_of_an_unknown_order_each_member_fetches_what_it_owns() -> None:
    planner = planner_of(0b10)
    for at, number in enumerate((40, 3, 22, 61, 9, 30, 17, 55, 1, 48, 35, 12)):
        read_here(planner, REFS[number], 1.0 + at)
    land(planner, REFS[5], 1)
    found = wanted(planner, 13.0)
    assert len(found) > 16
    assert REFS[5] not in found, "the rest of it is for others to fetch"
    assert set(found.values()) == {(1,)}
    for ref in found:
        land(planner, ref, 1)
    assert not found.keys() & wanted(planner, 13.0).keys(), "what it owns of them is here"


def test_the_order_of_a_reader_here_is_fetched_near() -> None:
    planner = planner_of(0b10)
    planner.announced("a", REFS, 1.0, total=COUNT)
    assert set(wanted(planner, 1.0).values()) == {(0, 1)}


def test_the_order_of_a_reader_elsewhere_is_fetched_by_owners() -> None:
    planner = planner_of(0b10)
    for epoch in range(2):
        for number in range(COUNT if epoch == 0 else 24):
            read_on_peer(planner, REFS[number], 1.0 + epoch * COUNT + number)
    (epoch_of_it,) = planner.registry.item(REFS[0])[0].epochs()
    assert epoch_of_it.order_known
    found = wanted(planner, 1.0 + COUNT + 24)
    assert found
    assert set(found.values()) == {(1,)}


def test_what_any_member_has_read_is_read() -> None:
    """Four nodes share an epoch; this one reads a quarter of it."""
    planner = planner_of(0b11)
    for number in range(48):
        if number % 4 == 0:
            read_here(planner, REFS[number], 1.0 + number)
        else:
            read_on_peer(planner, REFS[number], 1.0 + number, f"m{number % 4}")
    found = set(wanted(planner, 49.0))
    assert len(found) >= 12
    assert found <= set(REFS[45:]), "three are being read"


def test_clients_of_several_nodes_are_taken_for_one_job_until_a_repeat() -> None:
    planner = planner_of(0b11)
    order = [number * 37 % COUNT for number in range(COUNT)]
    for at, number in enumerate(order[:12]):
        if at % 2:
            read_here(planner, REFS[number], 1.0 + at)
        else:
            read_on_peer(planner, REFS[number], 1.0 + at)
    read_before = {REFS[number] for number in order[:12]}
    assert not read_before & wanted(planner, 13.0).keys()
    for number in order[:12:2]:
        read_here(planner, REFS[number], 14.0)
    assert len(planner.registry.item(REFS[0])[0].epochs()) == 2, "each reads for itself"
    for at, number in enumerate(order[12:24]):
        read_here(planner, REFS[number], 15.0 + at)
    assert len(planner.registry.item(REFS[0])[0].epochs()) == 2, "and is not soon taken for one job again"


def test_that_several_nodes_repeat_their_order_is_first_to_be_shown() -> None:
    planner = planner_of(0b11)
    for at in range(COUNT):
        read_on_peer(planner, REFS[at * 37 % COUNT], 1.0 + at, f"m{at % 4}")
    read_on_peer(planner, REFS[20 * 37 % COUNT], 1.0 + COUNT, "m0")
    epochs = planner.registry.item(REFS[0])[0].epochs()
    assert [(epoch.number, epoch.order_known) for epoch in epochs if epoch.trusted] == [(1, False)]


def test_what_others_have_read_goes_first() -> None:
    planner = planner_of(0b11)
    for ref in REFS:
        land(planner, ref, 0, 1)
    for number in range(48):
        member = number % 4
        if member:
            read_on_peer(planner, REFS[number], 1.0 + number, f"m{member}")
        else:
            read_here(planner, REFS[number], 1.0 + number)
    victims = list(dict.fromkeys(block.version_id.decode().rstrip() for block in planner.victims()))
    # Three are being read still. Ranks are made true a few at a time.
    assert len(set(victims[:45]) & {ref.key for ref in REFS[:45]}) >= 43


def test_a_read_elsewhere_does_not_hold_an_object_here() -> None:
    planner = planner_of()
    land(planner, REFS[0], 0, 1)
    read_on_peer(planner, REFS[0], 1.0)
    assert [block.index for block in planner.victims()] == [1, 0]
    planner.requested("a", REFS[0], SIZE, Extent(0, SIZE), 2.0)
    planner.read(BlockKey(REFS[0].key.encode().ljust(16), 0))
    read_on_peer(planner, REFS[0], 3.0)
    assert [block.index for block in planner.victims()] == [0], "only the block that its reader here is past"


def announced_on_peers(mine: int = 0b11) -> Planner:
    """Each of two other members has announced its order: of the first and of the second half."""
    planner = planner_of(mine)
    planner.announced("m/a", REFS[:32], 1.0, total=32, on_peer=True)
    planner.announced("n/a", REFS[32:], 1.0, total=32, on_peer=True)
    return planner


def test_an_object_that_is_read_elsewhere_in_a_known_order_is_held_until_its_reader_begins_the_next() -> None:
    """As its reader goes on, the blocks that it has fetched may go."""
    planner = announced_on_peers()
    land(planner, REFS[0], 0, 1)
    read_on_peer(planner, REFS[0], 2.0)
    assert list(planner.victims()) == []
    planner.read(BlockKey(REFS[0].key.encode().ljust(16), 0))
    assert [block.index for block in planner.victims()] == [0]
    read_on_peer(planner, REFS[32], 3.0, "n")
    assert [block.index for block in planner.victims()] == [0], "that is another member's reader"
    read_on_peer(planner, REFS[1], 4.0)
    assert [block.index for block in planner.victims()] == [1, 0]
    land(planner, REFS[1], 0)
    assert [block.index for block in planner.victims()] == [1, 0], "a block that lands is for the reader"


def test_nothing_is_held_for_a_member_that_fell_silent() -> None:
    planner = announced_on_peers()
    land(planner, REFS[0], 0, 1)
    read_on_peer(planner, REFS[0], 2.0)
    read_on_peer(planner, REFS[32], 100.0, "n")
    assert [block.index for block in planner.victims()] == [1, 0]


def test_what_was_read_of_orders_that_are_announced_anew_goes_before_what_is_left() -> None:
    """The next order is another one, so that no object of this one is sure to be read soon."""
    planner = announced_on_peers()
    for ref in REFS:
        land(planner, ref, 0, 1)
    for number in range(24):
        read_on_peer(planner, REFS[number], 2.0 + number)
        read_on_peer(planner, REFS[32 + number], 2.0 + number, "n")
    read = {ref.key.encode().ljust(16) for ref in [*REFS[:23], *REFS[32:55]]}
    victims = list(dict.fromkeys(block.version_id for block in planner.victims()))
    assert set(victims[: len(read)]) == read


def test_before_the_first_read_of_orders_that_several_announce_only_their_first_objects_displace_others() -> None:
    planner = announced_on_peers()
    for number in range(32):
        read_on_peer(planner, REFS[number], 2.0 + number)
        read_on_peer(planner, REFS[32 + number], 2.0 + number, "n")
    for ref in REFS[16:]:
        land(planner, ref, 0, 1)
    planner.announced("m/a", REFS[:32], 40.0, total=32, on_peer=True)
    planner.announced("n/a", REFS[32:], 40.0, total=32, on_peer=True)
    assert set(wanted(planner, 40.0, free_bytes=0)) == {REFS[0]}


def test_objects_of_an_unknown_order_are_guesses() -> None:
    member, alone, informed = planner_of(), Planner(1_000_000, BLOCK), planner_of()
    alone.discovery.listed("b", [(ref.key, SIZE) for ref in REFS])
    informed.announced("a", REFS, 0.0, total=COUNT)
    for planner in (member, alone, informed):
        for number, place in enumerate((5, 60, 17)):
            read_here(planner, REFS[number if planner is informed else place], float(number))
    guesses = [{want.is_guess for want in planner.wants(3.0, 1_000_000, 1000)} for planner in (member, alone, informed)]
    assert guesses == [{True}, {True}, {False}]


def test_a_job_that_was_seen_to_read_all_is_fetched_ahead_of_without_guessing() -> None:
    """Its order is new in each epoch. Its objects are known, and not when each is read."""
    planner = Planner(COUNT // 2 * SIZE, BLOCK)
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in REFS])
    orders = [Random(seed).sample(REFS, COUNT) for seed in (1, 2)]
    for at, ref in enumerate([*orders[0], *orders[1][:20]]):
        read_here(planner, ref, float(at))
    wants = planner.wants(COUNT + 20.0, COUNT // 2 * SIZE, 1000)
    assert wants
    assert not any(want.is_guess for want in wants)


def test_prefetch_of_a_known_order_does_not_wait_for_guesses() -> None:
    planner = planner_of(0b11)
    planner.join(lambda client, ref, size: None, lambda ref, count: (1 << count) - 1, lambda: 1_000_000, guessed_max=8)
    announced = [ObjectRef("b", f"e/{number:06d}.tar") for number in range(COUNT)]
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in announced])
    for at, number in enumerate((40, 3, 22, 61, 9, 30, 17, 55, 1, 48, 35, 12)):
        read_here(planner, REFS[number], 1.0 + at)
    guesses = planner.wants(12.5, 1_000_000, 16)
    assert [(want.is_guess, len(want.blocks)) for want in guesses] == [(True, 2)] * 4
    planner.announced("b", announced, 12.5, total=COUNT)
    read_here(planner, announced[0], 12.6, "b")
    assert {want.is_guess for want in planner.wants(12.6, 1_000_000, 16)} == {False}
    land(planner, guesses[0].ref, 0, 1)
    planner.dropped(guesses[1].ref)
    assert sum(want.is_guess for want in planner.wants(12.6, 1_000_000, 1000)) == 2


def test_an_object_without_a_block_of_this_member_is_not_on_its_way_once_its_size_is_known() -> None:
    planner = Planner(1_000_000, BLOCK)
    planner.join(lambda client, ref, size: None, lambda ref, count: 0b10, lambda: 1_000_000)
    planner.discovery.listed("b", [(ref.key, -1) for ref in REFS])
    for number, place in enumerate((5, 60, 17)):
        read_here(planner, REFS[place], float(number))
    want = planner.wants(3.0, 1_000_000, 8)[0]
    assert planner.outstanding.of(want.ref) is not None
    planner.found(want.ref, BLOCK)
    assert planner.outstanding.of(want.ref) is None
    planner.dropped(want.ref)


def pacing(room_blocks: int) -> Planner:
    """A member with so much room, all of it taken by blocks that are needed last. It owns one block of two. A client of
    another member reads an object of eight blocks each 8 seconds, in the order that it announced. It has begun the
    ninth, which is here."""
    planner = Planner(room_blocks * BLOCK, BLOCK)
    planner.join(lambda client, ref, size: None, lambda ref, blocks: 0b01010101 & ((1 << blocks) - 1), lambda: 0)
    planner.discovery.listed("b", [(ref.key, 8 * BLOCK) for ref in REFS])
    planner.announced("m/a", REFS, 0.0, total=COUNT, on_peer=True)
    for number in range(9):
        planner.opened_on_peer("m", "m/a", REFS[number], 8 * BLOCK, 1, 8.0 * number)
    for ref in [REFS[8], *REFS[-room_blocks // 4 :]]:
        land_of_eight(planner, ref, 0, 2, 4, 6)
    return planner


def land_of_eight(planner: Planner, ref: ObjectRef, *blocks: int) -> None:
    for index in blocks:
        planner.added(BlockKey(ref.key.encode().ljust(16), index), ObjectVersion(ref, '"e"', 8 * BLOCK))


def test_blocks_for_which_others_must_go_are_fetched_as_their_reader_comes_to_them() -> None:
    planner = pacing(48)
    began_s, came = 64.0, dict[int, float]()
    for tenth in range(160):
        now = began_s + tenth / 10
        if tenth == 80:
            planner.opened_on_peer("m", "m/a", REFS[9], 8 * BLOCK, 1, now)
        for want in planner.wants(now, 0, 1000):
            land_of_eight(planner, want.ref, *want.blocks)
            if want.ref == REFS[9]:
                came |= dict.fromkeys(want.blocks, now - began_s)
    assert sorted(came) == [0, 2, 4, 6], "each block that the member owns, once"
    assert came[0] == 0.0, "the head of the next object"
    assert came[0] < came[2] < came[4] < came[6], "and not all at once"
    assert came[6] == 8.0, "the rest as its reader begins the object"


def test_a_part_of_an_object_that_does_not_come_is_wanted_again() -> None:
    planner = pacing(48)
    (want,) = planner.wants(64.0, 0, 1000)
    assert (want.ref, want.blocks) == (REFS[9], (0,))
    (more,) = planner.wants(70.0, 0, 1000)
    assert more.ref == REFS[9]
    assert 0 not in more.blocks
    planner.dropped(want.ref, want.blocks)
    assert planner.outstanding.blocks == len(more.blocks), "those are on their way"
    (again,) = planner.wants(70.0, 0, 1000)
    assert (again.ref, again.blocks) == (REFS[9], (0,))


def test_blocks_of_others_are_fetched_ahead_only_where_there_is_room_for_them() -> None:
    near_bytes = 0
    planner = Planner(40 * BLOCK, BLOCK)
    planner.join(lambda client, ref, size: None, lambda ref, blocks: 0b01, lambda: near_bytes)
    planner.discovery.listed("b", [(ref.key, SIZE) for ref in REFS])
    planner.announced("a", REFS, 1.0, total=COUNT)
    assert set(wanted(planner, 1.0, free_bytes=SIZE - 1).values()) == {(0,)}
    near_bytes = 1_000_000
    assert (0, 1) in wanted(planner, 1.0, free_bytes=4 * SIZE).values()


def test_an_object_whose_near_block_went_is_kept_as_others() -> None:
    planner = planner_of(0b01)
    for ref in REFS[:2]:
        land(planner, ref, 0, 1)
    planner.removed(BlockKey(REFS[0].key.encode().ljust(16), 1))
    read_here(planner, REFS[1], 1.0)
    assert next(iter(planner.victims())).version_id == REFS[1].key.encode().ljust(16)


def test_readers_of_all_members_count_until_they_are_silent() -> None:
    planner = planner_of()
    planner.opened_on_peer("m", "m/a", REFS[0], SIZE, 7, 1.0)
    planner.opened_on_peer("n", "n/a", REFS[1], SIZE, 4, 2.0)
    assert planner.readers_on_peers == 11
    planner.opened_on_peer("n", "n/a", REFS[2], SIZE, 5, 70.0)
    assert planner.readers_on_peers == 5


def test_an_order_that_was_announced_on_a_peer_is_fetched_by_owners() -> None:
    planner = planner_of(0b10)
    planner.announced("m/a", REFS, 1.0, total=COUNT, on_peer=True)
    assert set(wanted(planner, 1.0).values()) == {(1,)}


def test_reads_of_several_nodes_before_the_names_are_known_are_of_the_first_epoch() -> None:
    """Otherwise the epoch seems to go on with the objects that they read, beside the next one."""
    planner = Planner(1_000_000, BLOCK)
    planner.join(lambda client, ref, size: None, lambda ref, blocks: 1, lambda: 1_000_000)
    for number, ref in enumerate(Random(1).sample(REFS, COUNT)):
        if number == 5:
            planner.discovery.listed("b", [(ref.key, SIZE) for ref in REFS])
        read_on_peer(planner, ref, 1.0 + number, f"m{number % 4}")
    (epoch,) = planner.registry.item(REFS[0])[0].epochs()
    assert (epoch.number, len(epoch.log), epoch.left) == (1, 0, COUNT)


def test_a_member_leaves_room_for_misses_of_all_readers() -> None:
    """It owns one block of two, and no member knows whose blocks will be asked of it."""
    room = 40 * BLOCK
    planner = planner_of(0b01, capacity_bytes=room)
    for at, ref in enumerate(Random(1).sample(REFS, 12)):
        read_on_peer(planner, ref, 1.0 + at)
    found = wanted(planner, 13.0, free_bytes=room)
    assert len(found) == 40 - 3, "blocks of one and a half objects"


def test_of_an_object_of_unknown_size_only_owned_blocks_are_on_their_way() -> None:
    planner = Planner(1_000_000, BLOCK)
    planner.join(lambda client, ref, size: None, lambda ref, blocks: 0b0101 & ((1 << blocks) - 1), lambda: 1_000_000)
    planner.announced("m/a", REFS, 1.0, total=COUNT, on_peer=True)
    (want,) = planner.wants(1.0, 1_000_000, 1)
    planner.found(want.ref, 4 * BLOCK)
    assert list(planner.blocks(want, 4)) == [0, 2]
    assert planner.outstanding.blocks == 2
    land(planner, want.ref, 0, 2)
    assert planner.outstanding.blocks == 0


def test_as_all_is_read_the_epoch_of_each_node_ends() -> None:
    """Each repeats a part of its own: that is an order, which is known from its second read on."""
    planner = planner_of()
    order = Random(1).sample(REFS, COUNT)
    for number, ref in enumerate(order):
        read_on_peer(planner, ref, 1.0 + number, f"m{number % 4}")
    jobs = planner.registry.item(REFS[0])[0].jobs
    for client, job in jobs.items():
        (epoch,) = job.epochs
        own = [planner.registry.item(ref)[1] for ref in order[int(client[1]) :: 4]]
        assert (epoch.number, list(epoch.agenda), len(epoch.log)) == (1, own, 0)


def test_an_object_is_fetched_near_as_a_whole_just_before_it_is_read() -> None:
    """Only copies of other members' blocks go for it."""
    planner = Planner(48 * BLOCK, BLOCK)
    planner.join(
        lambda client, ref, size: None, lambda ref, blocks: 0b01010101 & ((1 << blocks) - 1), lambda: 16 * BLOCK
    )
    planner.discovery.listed("b", [(ref.key, 8 * BLOCK) for ref in REFS])
    planner.announced("a", REFS, 0.0, total=COUNT)
    for number in range(9):
        planner.requested("a", REFS[number], 8 * BLOCK, Extent(0, 8 * BLOCK), 8.0 * number)
        planner.sent("a", REFS[number], 8.0 * number)
    for ref in REFS[-6:]:
        land_of_eight(planner, ref, *range(8))
    assert wanted(planner, 64.0, free_bytes=0) == {REFS[9]: tuple(range(8))}
    land_of_eight(planner, REFS[9], *range(8))
    assert wanted(planner, 64.0, free_bytes=0) == {}
