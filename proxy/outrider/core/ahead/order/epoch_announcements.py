"""Announced orders of an epoch: what its job says in advance becomes its agenda, and may be withdrawn."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import pairwise

from outrider.core.ahead.order.announced_order import AnnouncedOrder, Expectation
from outrider.core.ahead.order.epoch import ORDER_UNLIKELY, JobEpoch
from outrider.core.ahead.order.torch_sampler import at_once, out_of_batches


def begun_after(before: JobEpoch | None, index_count: int, now: float) -> JobEpoch:
    """An epoch whose order is about to be announced."""
    epoch = JobEpoch((), index_count, now, confidence=ORDER_UNLIKELY)
    if before is not None:
        epoch.period_s = before.seconds(now) if before.log else 0.0
        epoch.take_pace_of(before)
    return epoch


def is_another_order(indexes: Sequence[int], epoch: JobEpoch) -> bool:
    """These objects were announced to `epoch` before, and not in this order."""
    places = [epoch.place[index] for index in dict.fromkeys(indexes) if epoch.place[index] >= 0]
    ascents = sum(sooner < later for sooner, later in pairwise(places))
    return 2 * len(places) > len(indexes) and 4 * ascents < 3 * (len(places) - 1)


def announce(epoch: JobEpoch, indexes: Sequence[int], start: int, total: int) -> None:
    """The order of this epoch for certain: `indexes` are numbers `start`, `start` + 1, ... of the `total` that one
    worker reads. The orders of several workers are merged by how far each is through its own part."""
    order = epoch.announced_order
    if order is None:
        order = AnnouncedOrder(Expectation(epoch.agenda, epoch.confidence, epoch.number))
        epoch.replan((), confidence=1.0)
        epoch.announced_order, epoch.number, epoch.leader = order, max(1, epoch.number), None
    if not order.continues_at(start):
        order.several = True
        _read_without_batches(epoch)
    piece = order.piece(indexes, start, total, epoch.batch, epoch.workers, epoch.place)
    if piece and order.overlaps(piece[0][0]):
        # Workers that announce a piece each, in turn, are about equally far: most of what was announced keeps its
        # place.
        first, shares = order.cut(piece[0][0])
        piece = sorted([*zip(shares, epoch.cut(first), strict=True), *piece])
    for share, index in piece:
        if epoch.place[index] < 0:
            order.append(share)
            epoch.append(index)
    epoch.relocate()


def _read_without_batches(epoch: JobEpoch) -> None:
    """Each worker announces its own reads: its order is not dealt to several workers."""
    if epoch.workers > 1:
        epoch.agenda = at_once(out_of_batches(epoch.agenda, epoch.batch, epoch.workers))
        epoch.batch = epoch.workers = 1
        for place, index in enumerate(epoch.agenda):
            epoch.place[index] = place
        epoch.cursor.rewind(0)


def withdraw(epoch: JobEpoch, indexes: Set[int]) -> None:
    """Expect none of these any more. Once all announced objects are read or withdrawn, expect what was expected before
    the order was announced."""
    order = epoch.announced_order
    rest = [place for place, index in enumerate(epoch.agenda) if index not in indexes]
    if order is not None:
        order.keep(rest)
    epoch.replan([epoch.agenda[place] for place in rest], confidence=epoch.confidence)
    if order is not None and epoch.left == 0:
        epoch.announced_order, epoch.repeats, epoch.number = None, True, order.before.number
        epoch.replan(order.before.agenda, confidence=order.before.confidence)
