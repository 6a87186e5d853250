"""The reads of data loaders over a listed dataset, and a planner that observes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random

from outrider.core.ahead.planner import Planner
from outrider.core.model import Extent, ObjectRef

SIZE = 110_000


def beside_each_other(order: list[int], batch: int, workers: int, chance: Random) -> list[int]:
    """The reads of workers of about the same speed: a batch of each in turn."""
    batches = [order[begin : begin + batch] for begin in range(0, len(order), batch)]
    queues = [[number for its in batches[worker::workers] for number in its] for worker in range(workers)]
    read: list[int] = []
    while any(queues):
        for queue in chance.sample(queues, workers):
            read += queue[:1]
            del queue[:1]
    return read


def drifting(order: list[int], batch: int, workers: int, chance: Random, at_once: float) -> list[int]:
    """The reads of workers of different speeds: the next reader is a random one, and reads about `at_once` more in one
    go.

    As in torch, at most two batches for each worker are under way of which the first is not read yet.
    """
    batches = [order[begin : begin + batch] for begin in range(0, len(order), batch)]
    queues: list[list[list[int]]] = [[] for _ in range(workers)]
    read: list[int] = []
    sent = taken = 0
    while taken < len(batches):
        for number in range(sent, min(len(batches), taken + 2 * workers)):
            queues[number % workers].append(batches[number])
            sent += 1
        queue = chance.choice([queue for queue in queues if queue])
        some = 1 + int(chance.expovariate(1) * at_once)
        read += queue[0][:some]
        del queue[0][:some]
        if not queue[0]:
            del queue[0]
        while taken < len(batches) and not batches[taken]:
            taken += 1
    return read


class Sampled:
    def __init__(self, count: int, key: Callable[[int], str] = "train/{:06d}.jpg".format) -> None:
        self.planner = Planner(10 * SIZE, 2**20)
        self.refs = [ObjectRef("bucket", key(number)) for number in range(count)]
        self.planner.discovery.listed("bucket", sorted((ref.key, SIZE) for ref in self.refs))
        self.now = 0.0

    def read(self, numbers: Iterable[int], client: str = "client") -> None:
        for number in numbers:
            self.now += 0.1
            self.planner.asked(client, self.refs[number], SIZE, Extent(0, SIZE), self.now)
            self.planner.sent(client, self.refs[number], self.now)

    def steps(self) -> Iterator[None]:
        """One step of the seed search at a time, until none is left."""
        while self.planner.step():
            yield

    def foreseen(self, numbers: list[int], within: int) -> float:
        """Reads them; returns the share of reads that were among the `within` reads expected next, in a known order."""
        [dataset] = self.planner.registry.datasets()
        numbers_of = {dataset.names.find(ref.key): number for number, ref in enumerate(self.refs)}
        foreseen = 0
        for number in numbers:
            epoch = dataset.epochs()[-1] if dataset.epochs() else None
            if epoch is not None and epoch.order_known:
                done = epoch.done
                unread = (key for key in epoch.agenda if done[key] < 0)
                foreseen += number in {numbers_of[key] for key in islice(unread, within)}
            self.read([number])
            for _ in self.steps():
                pass
        return foreseen / len(numbers)

    @property
    def expected(self) -> list[int]:
        """The reads expected next, in the known order; empty: no order is known."""
        [dataset] = self.planner.registry.datasets()
        epoch = dataset.epochs()[-1]
        numbers = {ref.key: number for number, ref in enumerate(self.refs)}
        return [numbers[dataset.names.keys[key]] for key in epoch.agenda] if epoch.order_known else []
