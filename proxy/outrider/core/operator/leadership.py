"""Which of several operators acts: the holder of a Lease (Kubernetes coordination.k8s.io/v1).

Clocks of nodes differ. So a lease counts from when this process saw it change, as in Kubernetes' own leader election
(k8s.io/client-go, tools/leaderelection).
"""

from __future__ import annotations

from dataclasses import dataclass

LEASE_S = 15
RENEW_S = 5.0


@dataclass(slots=True)
class Leadership:
    """`me`: the name of this process. All times are seconds of one clock of it."""

    me: str
    _seen: tuple[str, str] = ("", "")
    _seen_at: float = 0.0
    _renewed_at: float | None = None

    def may_take(self, holder: str, renewed: str, now: float) -> bool:
        """Whether to write this process into the lease, which has these fields; both empty: there is no lease."""
        if (holder, renewed) != self._seen:
            self._seen, self._seen_at = (holder, renewed), now
        return holder in ("", self.me) or now - self._seen_at > LEASE_S

    def took(self, now: float) -> None:
        """The lease was written. `now` is from before that."""
        self._renewed_at = now

    def lost(self) -> None:
        """Another process holds it."""
        self._renewed_at = None

    def is_leader(self, now: float) -> bool:
        """A holder that cannot renew its lease stops before another may take it."""
        return self._renewed_at is not None and now - self._renewed_at < LEASE_S - RENEW_S
