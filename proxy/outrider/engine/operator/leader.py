"""Holds the Lease (Kubernetes coordination.k8s.io/v1), by which one of several operators acts.

Clocks of nodes differ. So a lease counts from when this process saw it change, as in Kubernetes' own leader election
(k8s.io/client-go, tools/leaderelection).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from outrider.operator_ports import ConflictError, Kube
from outrider.ports import Clock

LEASE_S = 15
RENEW_S = 5.0


class Leader:
    """`me`: the name of this process. `monotonic` and `clock`: seconds; since the epoch for `clock`."""

    def __init__(self, kube: Kube, name: str, me: str, *, monotonic: Clock, clock: Clock) -> None:
        self._kube = kube
        self._name = name
        self._me = me
        self._monotonic = monotonic
        self._clock = clock
        # The holder and its last renewal, and when this process first saw them.
        self._seen = "", ""
        self._seen_at = 0.0
        self._renewed_at: float | None = None

    def is_leader(self) -> bool:
        """A holder that cannot renew its lease stops before another may take it."""
        return self._renewed_at is not None and self._monotonic() - self._renewed_at < LEASE_S - RENEW_S

    async def step(self) -> None:
        """Takes the lease where it may. Raises KubeError."""
        now, lease = self._monotonic(), await self._kube.get("Lease", self._name)
        spec: dict[str, Any] = dict((lease or {}).get("spec") or {})
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if (holder, renewed) != self._seen:
            self._seen, self._seen_at = (holder, renewed), now
        if holder not in ("", self._me) and now - self._seen_at <= LEASE_S:
            self._renewed_at = None
            return
        time = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec.update(holderIdentity=self._me, renewTime=time, leaseDurationSeconds=LEASE_S)
        if holder != self._me:
            spec.update(acquireTime=time, leaseTransitions=spec.get("leaseTransitions", 0) + (lease is not None))
        try:
            if lease is None:
                await self._kube.create("Lease", {
                    "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
                    "metadata": {"name": self._name, "namespace": self._kube.namespace},
                })  # fmt: skip
            else:
                await self._kube.update("Lease", {**lease, "spec": spec})
        except ConflictError:
            self._renewed_at = None
            return
        # From before the write: it took a while.
        self._renewed_at = now

    async def release(self) -> None:
        """So that another one need not wait for the end of the lease. Raises KubeError."""
        if not self.is_leader():
            return
        self._renewed_at = None
        lease = await self._kube.get("Lease", self._name)
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._me:
            await self._kube.update("Lease", {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
