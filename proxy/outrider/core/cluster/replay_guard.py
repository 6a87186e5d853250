"""Refuses a signed request received before: the anti-replay window of IPsec."""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 4096
"""Requests of one sender may overtake each other by so many: more than a member has under way to another."""
FORGET_S = 600.0
"""A signature is valid five minutes before and after the receiver's time. The requests of a sender that was silent
of for so long cannot be sent again, since their signatures have expired."""
_SENDERS_MAX = 1024


@dataclass(slots=True)
class _KnownSender:
    boot: int
    # The highest number so far. Bit `i` of the mask: number `highest - i` came.
    highest: int
    mask: int
    received_at: float


class ReplayGuard:
    """To be asked after the signature was verified, so that only members are senders.

    Each process of a sender numbers its requests to all receivers from 1; no number is used twice. An older process is
    refused, since the window does not show which of its requests came. After a clock that was set back, a sender is
    therefore refused for `FORGET_S`. A receiver that begins knows nothing of the requests before.

    Source: RFC 4303 section 3.4.3.
    """

    def __init__(self, senders_max: int = _SENDERS_MAX) -> None:
        self._senders_max = senders_max
        # The sender that was active last is the last one.
        self._senders: dict[str, _KnownSender] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def admit(self, sender: str, boot: int, number: int, now: float) -> bool:
        """False: the request came before, or may have come. `number`: from 1. `now`: seconds, of one clock."""
        if number < 1:
            return False
        known = self._senders.get(sender)
        if known is None or boot > known.boot or now - known.received_at > FORGET_S:
            if known is None and not self._has_room(now):
                return False
            known = _KnownSender(boot, number, 1, now)
        elif boot < known.boot or not _is_new(known, number):
            return False
        known.received_at = now
        self._senders.pop(sender, None)
        self._senders[sender] = known
        return True

    def _has_room(self, now: float) -> bool:
        """A sender that is forgotten too early could have its requests sent again."""
        if len(self._senders) < self._senders_max:
            return True
        oldest = next(iter(self._senders))
        if now - self._senders[oldest].received_at <= FORGET_S:
            return False
        del self._senders[oldest]
        return True


def _is_new(known: _KnownSender, number: int) -> bool:
    ahead = number - known.highest
    if ahead > 0:
        # A jump may be of any length: nothing is shifted by more than the window.
        known.mask = (known.mask << ahead & (1 << WINDOW) - 1 | 1) if ahead < WINDOW else 1
        known.highest = number
        return True
    if ahead <= -WINDOW or known.mask >> -ahead & 1:
        return False
    known.mask |= 1 << -ahead
    return True
