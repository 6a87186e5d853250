"""The parts that all sources of members share: one form of lists, and the log and the waits while a source is away."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence

from prometheus_client import Counter

from outrider.adapters.process.file_reload import Sleep
from outrider.core.cluster.member import ListedMember
from outrider.core.origin.backoff import Backoff

log = logging.getLogger(__name__)

# A source that is back after an outage is noticed within half a minute.
_BACKOFF = Backoff(base_s=1.0, cap_s=30.0)


class SourceUnreachable(Exception):
    """The source gave no list. The message says why."""


class Outages:
    """Logs the begin and the end of each outage of a source, counts its failures, and says how long to wait.

    `chance` returns numbers in [0, 1): members that lost their source together do not ask it again together.
    """

    def __init__(
        self, source: str, failures: Counter, chance: Callable[[], float], *, backoff: Backoff = _BACKOFF,
        on_outage: Callable[[str], object] = str,
    ) -> None:  # fmt: skip
        """`on_outage` is called with the reason why the source gives no list."""
        self._source = source
        self._failures = failures
        self._chance = chance
        self._backoff = backoff
        self._on_outage = on_outage
        self._in_a_row = 0
        self._reported = ""

    def failed(self, why: str) -> float:
        """The seconds to wait before the source is asked again."""
        self._in_a_row += 1
        self._failures.inc()
        self._on_outage(why)
        if why != self._reported:
            self._reported = why
            log.warning("source of members gives no list", extra={"source": self._source, "error": why})
        # At least half of the wait: full jitter may ask again at once.
        return self._backoff.wait_s(self._in_a_row, 0.5 + self._chance() / 2)

    def over(self) -> None:
        """The source gave a list."""
        if self._in_a_row:
            log.info("source of members is back", extra={"source": self._source, "failures": self._in_a_row})
        self._in_a_row, self._reported = 0, ""


def in_order(entries: Iterable[ListedMember]) -> tuple[ListedMember, ...]:
    """The entries by address, each address once. If two entries have one address, the one that says more is kept."""
    best: dict[str, ListedMember] = {}
    for entry in entries:
        other = best.get(entry.address)
        if other is None or _facts(entry) > _facts(other):
            best[entry.address] = entry
    return tuple(best[address] for address in sorted(best))


def _facts(entry: ListedMember) -> tuple[int, str, str, int]:
    stated = (bool(entry.name), bool(entry.zone), bool(entry.weight_bytes))
    return sum(stated), entry.name, entry.zone, entry.weight_bytes


async def polled(
    ask: Callable[[], Awaitable[Iterable[ListedMember]]], outages: Outages, sleep: Sleep, every_s: float
) -> AsyncGenerator[Sequence[ListedMember], None]:
    """The lists that `ask` returns, each that differs from the one before. `ask` raises SourceUnreachable."""
    last: Sequence[ListedMember] | None = None
    while True:
        try:
            found = in_order(await ask())
        except SourceUnreachable as error:
            await sleep(outages.failed(str(error)))
            continue
        outages.over()
        if found != last:
            last = found
            yield found
        await sleep(every_s)
