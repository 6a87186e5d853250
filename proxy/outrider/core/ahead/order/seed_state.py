"""The seed by which an epoch's order is drawn: what is known of it, and when it is searched for."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from outrider.core.ahead.order.torch_sampler import Draw
from outrider.core.ahead.order.webdataset_shuffle import ALL_SEEDS, Shuffle

# Reads of an epoch after which the first seed search begins: of any epoch, and of one whose last epoch's seed is known.
SEARCH_FIRST, SEARCH_KNOWN = 16, 4
# Seeds that are tried for one job's shuffle, whatever number of workers they are tried for.
SHUFFLE_SEEDS_MAX = 2 * ALL_SEEDS

Seeded = Draw | Shuffle
"""The seed of an order, and what else decides it: drawn by a PyTorch sampler, or by WebDataset's workers."""


class DrawnOrder(NamedTuple):
    """An order that is worked out from its seed. `agenda` and `place` are as in `JobEpoch`."""

    draw: Seeded
    agenda: array[int]
    place: array[int]


class SeedState:
    """The known facts about the seed of one epoch, of the epoch before it, and of the next one. `order_search` fills
    them in.

    While `draw` is None, the order of this epoch is not known by a seed. A `draw` that the reads contradict is given up
    with all that was derived from it.
    """

    def __init__(self) -> None:
        # The draw of this epoch's order, and of the last epoch's.
        self.draw: Seeded | None = None
        self.last_draw: Seeded | None = None
        # Which of the draws that may follow one did so at the end of the last epoch, as an index into `next_draws` or
        # `next_shuffles`. -1: not known.
        self.successor = -1
        # A seed search begins after so many reads of this epoch.
        self.search_at = SEARCH_FIRST
        self.failed_searches = 0
        # The relative speed of WebDataset's workers, by the rank of the first name of each.
        self.paces: dict[int, float] = {}
        # How many seeds have been tried without success, by the number of workers they were tried for.
        self.seeds_tried: dict[int, int] = {}
        # How many shuffles were found and then contradicted by the reads.
        self.shuffles_refuted = 0
        # A draw that is proven while the batches in which it is read are not clear yet.
        self.unbatched: Draw | None = None
        # The order of the next epoch, where it is known already.
        self.upcoming: DrawnOrder | None = None
        # How many listed names the seed draws from.
        self.drawn_from = 0

    @property
    def is_sampled(self) -> bool:
        """A PyTorch sampler draws the order. It may read some objects twice and leave out others, so that each rank
        gets the same number."""
        return self.draw is not None and isinstance(self.draw, Draw)

    @property
    def is_shuffled(self) -> bool:
        """WebDataset's workers draw the order. They read each object once."""
        return isinstance(self.draw, Shuffle)

    def give_up(self, reads: int, *, refuted: bool) -> None:
        """After `reads` reads of the epoch the draw is not its order. `refuted`: the reads contradict it."""
        if self.is_shuffled and refuted:
            self.seeds_tried = {0: SHUFFLE_SEEDS_MAX}
            self.shuffles_refuted += 1
        self.draw = self.last_draw = self.upcoming = self.unbatched = None
        self.successor, self.drawn_from = -1, 0
        self.search_at = max(SEARCH_FIRST, reads)

    def begin_after(self, previous: SeedState) -> DrawnOrder | None:
        """An epoch begins that follows the epoch of `previous`, which may be this one. Returns its order, if known."""
        self.last_draw, self.successor = previous.draw, previous.successor
        self.failed_searches = previous.failed_searches
        self.drawn_from, self.shuffles_refuted = previous.drawn_from, previous.shuffles_refuted
        # After one refuted shuffle all seeds are tried once more: another run may have begun, with another seed.
        self.seeds_tried = {} if previous.shuffles_refuted == 1 else previous.seeds_tried
        self.draw = self.unbatched = None
        self.search_at = SEARCH_FIRST if self.last_draw is None else SEARCH_KNOWN if self.successor < 0 else 0
        upcoming, previous.upcoming = previous.upcoming, None
        return upcoming
