"""Orders that clients announce (plans) reach all members of the cluster.

Only the member that a client gave it to passes an order on, so that nothing goes round. Each member fetches ahead the
blocks of it that it owns. The messages are numbered and kept, and each member gets them one after the other. So a
member that joins later, begins anew or missed a message gets the orders after its next hello.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import ORDER_PATH, OrderNotice, parts_of
from outrider.core.cluster.view import View
from outrider.core.cluster.wire_forms import WireError, encode
from outrider.core.model import ObjectRef
from outrider.engine.ahead.cached_across_members import CachedAcrossMembers
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.cluster.outbox import Outbox, Outgoing

# Messages that are kept to be sent, and sent again. Beyond that the oldest are dropped: an order is a hint.
_KEPT_MAX, _KEPT_BYTES_MAX = 4096, 16 * 1024 * 1024
# Orders of other members that may be withdrawn; the oldest are dropped.
_ORDERS_MAX, _ORDERS_BYTES_MAX = 1024, 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Kept:
    """A message, as it is sent, about the plan `order`."""

    order: int
    body: bytes


class PlansAcrossMembers:
    """Implements `http.control.control_bucket.Plans`. All on the engine's loop."""

    path = ORDER_PATH

    def __init__(
        self, prefetch: Prefetch, cached: CachedAcrossMembers, view: Callable[[], View], outbox: Outbox, *, boot: int
    ) -> None:
        """`boot`: see `Hello`."""
        self._prefetch = prefetch
        self._cached = cached
        self._view = view
        self._outbox = outbox
        self._boot = boot
        # The numbers of this node's plans, as its messages have them.
        self._orders: WeakKeyDictionary[Hint, int] = WeakKeyDictionary()
        self._last_order = self._last_number = 0
        # By number, ascending.
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._kept_bytes = 0
        # The last number that each process acknowledged, by member and boot.
        self._acknowledged: dict[tuple[str, int], int] = {}
        # The process of each member.
        self._boots: Mapping[str, int] = {}
        # Orders of clients of other members, by member and order; and the last message of each member: boot and number.
        self._peer_orders: OrderedDict[tuple[str, int], Hint] = OrderedDict()
        self._last_numbers: dict[str, tuple[int, int]] = {}

    # -- clients of this node -----------------------------------------------------------------------------------------

    def announce(self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, hint: Hint) -> None:
        self._prefetch.announce(client, refs, start=start, total=total, hint=hint)
        order = self._orders.get(hint)
        if order is None:
            order = self._orders[hint] = self._last_order = self._last_order + 1
        elif start == 0:
            # Another epoch: a member that joins now needs to know no other.
            self._drop(order)
        self._keep_and_send(OrderNotice(self._view().me.name, self._boot, 0, order, client, tuple(refs), start, total))

    def withdraw(self, hint: Hint, others: Iterable[Hint], /) -> int:
        order = self._orders.pop(hint, None)
        if order is not None:
            self._drop(order)
            self._keep_and_send(OrderNotice(self._view().me.name, self._boot, 0, order, "", is_withdrawn=True))
        return self._prefetch.withdraw(hint, others)

    async def progress(self, hint: Hint, /) -> PlanProgress:
        return await self._prefetch.progress(hint, self._cached.count)

    def _drop(self, order: int) -> None:
        """Its messages need not be sent any more."""
        for number in [number for number, kept in self._kept.items() if kept.order == order]:
            self._kept_bytes -= len(self._kept.pop(number).body)

    # -- to the other members -----------------------------------------------------------------------------------------

    def _keep_and_send(self, message: OrderNotice) -> None:
        try:
            parts = list(parts_of(message))
        except WireError:
            return  # no object has such a name
        for part in parts:
            self._last_number += 1
            kept = _Kept(message.order, encode(replace(part, number=self._last_number)))
            self._kept[self._last_number] = kept
            self._kept_bytes += len(kept.body)
        while len(self._kept) > _KEPT_MAX or self._kept_bytes > _KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].body)
        self.send()

    def send(self) -> None:
        """Begins to send the members what they lack. To be called after each hello, too."""
        view = self._view()
        self._boots = {state.member.name: state.boot for state in view.states}
        # Processes that have ended are forgotten.
        self._acknowledged = {
            process: last for process, last in self._acknowledged.items() if process in self._boots.items()
        }
        if any((name, self._boots.get(name, 0)) not in self._acknowledged for name in view.alive):
            # A member that begins gets no order that is over.
            for hint, order in list(self._orders.items()):
                if not any(indexes for _, _, indexes in hint.unread()):
                    self._drop(order)
        # Members of other zones have a cache of their own.
        near = [member for member in view.alive.values() if member.name in view.acting]
        self._outbox.send(self, [member for member in near if self._number_for(member) is not None])

    def _number_for(self, member: Member) -> int | None:
        """The number of the next message for the member; None: it has all."""
        last = self._acknowledged.get(self._process_of(member), 0)
        if not self._kept or last >= next(reversed(self._kept)):
            return None
        return next(number for number in self._kept if number > last)

    def _process_of(self, member: Member) -> tuple[str, int]:
        return member.name, self._boots.get(member.name, 0)

    def next_for(self, member: Member) -> Outgoing | None:
        """See `outbox.Notices`."""
        number = self._number_for(member)
        if number is None:
            return None
        return Outgoing(self._kept[number].body, partial(self._confirmed, self._process_of(member), number))

    def _confirmed(self, process: tuple[str, int], number: int) -> None:
        self._acknowledged[process] = number

    def gave_up(self, member: Member) -> None:
        """See `outbox.Notices`. The orders that the member lacks are sent after its next hello."""

    # -- clients of other members -------------------------------------------------------------------------------------

    def on_order(self, message: OrderNotice) -> None:
        """A member passes on an order of a client. A message that was received before is ignored."""
        number, before = (message.boot, message.number), self._last_numbers.get(message.sender, (0, 0))
        if number <= before:
            return
        self._last_numbers[message.sender] = number
        if message.boot != before[0]:
            # That process has ended, and with it its plans.
            for old in [old for old in self._peer_orders if old[0] == message.sender]:
                del self._peer_orders[old]
        key = message.sender, message.order
        if message.is_withdrawn:
            hint = self._peer_orders.pop(key, None)
            if hint is not None:
                self._prefetch.withdraw(hint, ())
            return
        hint = self._peer_orders.get(key)
        if hint is None:
            hint = self._peer_orders[key] = Hint()
            self._bound()
        elif message.start == 0:
            hint.go_on()
        self._prefetch.announce(
            message.reader_name, message.refs, start=message.start, total=message.total, hint=hint, on_peer=True
        )

    def _bound(self) -> None:
        count = sum(hint.bytes for hint in self._peer_orders.values())
        while len(self._peer_orders) > _ORDERS_MAX or (count > _ORDERS_BYTES_MAX and len(self._peer_orders) > 1):
            count -= self._peer_orders.popitem(last=False)[1].bytes
