"""How many fills may run that nobody waits for: numbers in, numbers out."""

from __future__ import annotations

from outrider.core.courtesy import Courtesy


class Line:
    """Gives each connection 4 MB/s and all of them 32 MB/s."""

    def __init__(self) -> None:
        self.courtesy = Courtesy(64)
        self.now = 0.0

    def run(self, seconds: float, demand: int, *, queued: bool = True) -> list[int]:
        """So many connections that somebody waits for; how many others were allowed in each tenth of a second."""
        allowed = []
        for _ in range(int(seconds * 10)):
            courtesy = self.courtesy
            beside = courtesy.beside if demand else courtesy.alone
            allowed.append(beside)
            if courtesy.is_due(self.now):
                courtesy.judge(self.now, awaited=demand > 0, queued=queued)
            courtesy.flowed(int(min(4e5 * (demand + beside), 3.2e6)))
            self.now += 0.1
        return allowed


def test_alone_it_takes_what_fills_the_line_and_no_more() -> None:
    assert 7 <= Line().run(20, demand=0)[-1] <= 16


def test_what_nobody_needed_is_not_there_for_a_burst() -> None:
    line = Line()
    line.run(20, demand=0)
    assert line.run(20, demand=0, queued=False)[-1] == 2


def test_beside_readers_who_fill_the_line_it_keeps_out_of_the_way() -> None:
    line = Line()
    line.run(20, demand=0)
    assert max(line.run(20, demand=8)[5:]) <= 2


def test_beside_a_reader_who_leaves_room_it_takes_the_room() -> None:
    line = Line()
    line.run(20, demand=0)
    allowed = line.run(20, demand=2)
    assert allowed[0] == 1
    assert 3 <= sum(allowed[100:]) / len(allowed[100:]) <= 8


def test_after_a_silence_it_begins_anew() -> None:
    line = Line()
    line.run(20, demand=0)
    line.courtesy.heed(line.now + 0.9)
    assert line.courtesy.alone >= 7
    line.courtesy.heed(line.now + 1.1)
    assert (line.courtesy.alone, line.courtesy.beside) == (2, 1)


def test_what_is_limited_by_latency_alone_is_not_held_back() -> None:
    courtesy = Courtesy(64)
    for _ in range(200):
        courtesy.felt()
        courtesy.came_at_once(0.05)
    assert courtesy.alone == courtesy.beside == 64
