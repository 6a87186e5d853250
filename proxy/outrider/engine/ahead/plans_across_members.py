"""Orders that clients announce (plans) reach all members of the cluster.

Only the member that a client gave it to passes an order on, so that nothing goes round. Each member fetches ahead the
blocks of it that it owns. The messages are numbered and kept, and each member gets them one after the other. So a
member that joins later, begins anew or missed a message gets the orders after its next hello.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import ORDER_PATH, OrderNotice, parts_of
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.core.cluster.wire_forms import WireError, encode
from outrider.core.model import ObjectRef
from outrider.engine.ahead.cached_across_members import CachedAcrossMembers
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.tasks.runtime import Runtime
from outrider.ports import PeerTransport

log = logging.getLogger(__name__)

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

    def __init__(
        self, prefetch: Prefetch, cached: CachedAcrossMembers, view: Callable[[], View], transport: PeerTransport,
        runtime: Runtime, *, boot: int,
    ) -> None:  # fmt: skip
        """`boot`: see `Hello`."""
        self._prefetch = prefetch
        self._cached = cached
        self._view = view
        self._transport = transport
        self._runtime = runtime
        self._boot = boot
        # The numbers of this node's plans, as its messages have them.
        self._orders: WeakKeyDictionary[Hint, int] = WeakKeyDictionary()
        self._last_order = self._last_number = 0
        # By number, ascending.
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._kept_bytes = 0
        # The last number that each process acknowledged, by member and boot.
        self._acknowledged: dict[tuple[str, int], int] = {}
        self._sending: set[str] = set()
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
        boots = {state.member.name: state.boot for state in view.states}
        self._forget_processes(boots)
        if any((name, boots.get(name, 0)) not in self._acknowledged for name in view.alive):
            # A member that begins gets no order that is over.
            for hint, order in list(self._orders.items()):
                if not any(indexes for _, _, indexes in hint.unread()):
                    self._drop(order)
        for member in view.alive.values():
            # Members of other zones have a cache of their own.
            if member.name in view.acting and member.name not in self._sending:
                process = member.name, boots.get(member.name, 0)
                if self._next_for(process) is not None:
                    self._sending.add(member.name)
                    self._runtime.spawn(self._send(member, process), f"orders to {member.name}")

    def _forget_processes(self, boots: Mapping[str, int]) -> None:
        """Processes that have ended."""
        gone = [(name, boot) for name, boot in self._acknowledged if boots.get(name) != boot]
        for process in gone:
            del self._acknowledged[process]

    def _next_for(self, process: tuple[str, int]) -> int | None:
        """The number of the next message for the process; None: it has all."""
        last = self._acknowledged.get(process, 0)
        if not self._kept or last >= next(reversed(self._kept)):
            return None
        return next(number for number in self._kept if number > last)

    async def _send(self, member: Member, process: tuple[str, int]) -> None:
        """All messages that the member lacks, one after the other."""
        try:
            while (number := self._next_for(process)) is not None:
                await self._transport.send(member, ORDER_PATH, self._kept[number].body)
                self._acknowledged[process] = number
        except PeerFailed as error:
            log.debug("a member did not hear of an order", extra={"peer": member.name, "why": error.why})
        finally:
            self._sending.discard(member.name)

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
