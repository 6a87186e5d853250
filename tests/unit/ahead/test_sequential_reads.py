"""Sequential-read detection: readers of whole objects, of parallel ranges, or at random offsets."""

from __future__ import annotations

from random import Random

from outrider.core.ahead.readers import READERS_MAX, Readers, Shape
from outrider.core.model import Extent

MIB = 2**20
SIZE = 100 * MIB


def ask(
    streams: Readers, start: int, stop: int, now: float = 0.0, client: str = "a", item: int = 1
) -> tuple[bool, Shape]:
    asked = streams.requested(client, item, SIZE, Extent(start, stop), now)
    reader = streams.reader(client, item)
    assert reader is not None
    return asked.opened, reader.shape


def test_one_get_of_the_object_is_a_whole_read_and_a_second_one_opens_it_again() -> None:
    streams = Readers()
    assert ask(streams, 0, SIZE) == (True, Shape.WHOLE)
    assert ask(streams, 0, SIZE, 1.0) == (True, Shape.WHOLE)


def test_parallel_ranges_out_of_order_are_one_reader_that_goes_forward() -> None:
    """`aws s3 cp` requests ten ranges of 8 MiB at a time, in any order."""
    streams, parts = Readers(), [(i * 8 * MIB, min(SIZE, (i + 1) * 8 * MIB)) for i in range(13)]
    order = [*Random(1).sample(parts[:10], 10), *parts[10:]]
    opened = [ask(streams, *part, now=i / 10) for i, part in enumerate(order)]
    assert [first for first, _ in opened] == [True] + [False] * 12
    assert opened[-1][1] is Shape.FORWARD


def test_the_same_ranges_open_an_object_again_only_after_all_of_it() -> None:
    streams = Readers()
    half = [ask(streams, i * 10 * MIB, (i + 1) * 10 * MIB)[0] for i in range(5)]
    assert half == [True, False, False, False, False]
    assert ask(streams, 10 * MIB, 20 * MIB) == (False, Shape.FORWARD), "a part that broke is requested again"
    assert not any(ask(streams, i * 10 * MIB, (i + 1) * 10 * MIB)[0] for i in range(5, 10))
    assert ask(streams, 0, 10 * MIB)[0]


def test_small_ranges_all_over_are_random_and_bring_no_read_ahead() -> None:
    streams, chance = Readers(), Random(2)
    last = None
    for _ in range(30):
        start = chance.randrange(SIZE - 4096)
        last = streams.requested("a", 1, SIZE, Extent(start, start + 4096), 0.0)
    reader = streams.reader("a", 1)
    assert reader is not None
    assert reader.shape is Shape.RANDOM
    assert last is not None
    assert last.ahead is None


def test_a_reader_that_goes_on_is_read_ahead_for_further_each_time_up_to_the_end() -> None:
    streams, widths = Readers(), []
    for i in range(12):
        ahead = streams.requested("a", 1, SIZE, Extent(i * 8 * MIB, (i + 1) * 8 * MIB), i * 0.1).ahead
        widths.append(0 if ahead is None else ahead.length)
        assert ahead is None or (ahead.start == (i + 1) * 8 * MIB and ahead.stop <= SIZE)
    assert widths[0] == 0, "a single range may be the whole read"
    assert widths[1] < widths[2] < widths[3]


def test_two_clients_are_two_readers() -> None:
    streams = Readers()
    assert ask(streams, 0, SIZE, client="a")[0]
    assert ask(streams, 0, SIZE, client="b")[0]
    assert not ask(streams, 0, SIZE, client="a")[0] or len(streams) == 2


def test_readers_are_remembered_up_to_a_bound() -> None:
    streams = Readers()
    for item in range(READERS_MAX + 10):
        ask(streams, 0, 10, item=item)
    assert len(streams) == READERS_MAX
