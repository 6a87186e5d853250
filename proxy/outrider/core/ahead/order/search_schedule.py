"""When the reads of an epoch are worth a seed search, and when they refute the draw that a search has found."""

from __future__ import annotations

from outrider.core.ahead.object_names import Names
from outrider.core.ahead.order.epoch import ORDER_UNLIKELY, JobEpoch
from outrider.core.ahead.order.webdataset_shuffle import Shuffle

# An order is refuted at this confidence: after some twenty reads elsewhere. Fewer of them may be one worker that was
# held up, and then reads its batch in one go.
_REFUTED = 0.1
# A little more reads in order than elsewhere: the order may yet be proven.
LEANS = 0.6
# An order that is about to be refuted is searched again after so many reads each.
_SEARCH_AGAIN = 4


def is_worth_a_search(epoch: JobEpoch, names: Names) -> bool:
    """It is time, and the reads of the epoch may show more. Gives up a draw that they contradict."""
    seed_state = epoch.seed_state
    if seed_state.draw is not None:
        _doubt_draw(epoch, names)
    if len(epoch.log) < seed_state.search_at:
        return False
    order = epoch.announced_order
    if order is not None or seed_state.draw is not None:
        is_open = seed_state.successor >= 0 and seed_state.upcoming is None
        return is_open or not (order is not None and order.several)
    # An epoch that begins in the order of the names may be drawn from a buffer that holds the first of them.
    is_known = epoch.order_known and epoch.number > 0 and seed_state.last_draw is None
    return not is_known and len(names.listed) > 0


def _doubt_draw(epoch: JobEpoch, names: Names) -> None:
    if epoch.confidence < _REFUTED:
        _give_up_draw(epoch, names)
    draw = epoch.seed_state.draw
    if not isinstance(draw, Shuffle):
        return
    if epoch.log and epoch.place[epoch.log[-1]] < 0:
        rank = names.place_of(epoch.log[-1])
        if rank >= 0:
            # A worker, or all workers of a rank, began late.
            epoch.expect(names.listed[rank % draw.workers :: draw.workers])
    if epoch.confidence < LEANS and len(epoch.log) % _SEARCH_AGAIN == 0:
        # The reads may differ from the draw only from where the buffer was full.
        epoch.seed_state.search_at = len(epoch.log)


def _give_up_draw(epoch: JobEpoch, names: Names) -> None:
    was_share = len(epoch.agenda) < len(names.listed)
    epoch.give_up_draw()
    if was_share:
        epoch.replan(names.listed, confidence=ORDER_UNLIKELY)
