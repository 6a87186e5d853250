"""Holds the lease, by which one of several operators acts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from outrider.core.operator.leadership import LEASE_S, Leadership
from outrider.operator_ports import ConflictError, Kube


class Leader:
    """`monotonic` and `clock`: seconds; since the epoch for `clock`."""

    def __init__(
        self, kube: Kube, name: str, me: str, *, monotonic: Callable[[], float], clock: Callable[[], float]
    ) -> None:  # fmt: skip
        self._kube = kube
        self._name = name
        self._monotonic = monotonic
        self._clock = clock
        self._leadership = Leadership(me)

    def is_leader(self) -> bool:
        return self._leadership.is_leader(self._monotonic())

    async def step(self) -> None:
        """Takes the lease where it may. Raises KubeError."""
        now, lease = self._monotonic(), await self._kube.get("Lease", self._name)
        spec: dict[str, Any] = dict((lease or {}).get("spec") or {})
        holder = spec.get("holderIdentity") or ""
        if not self._leadership.may_take(holder, spec.get("renewTime") or "", now):
            self._leadership.lost()
            return
        me, time = self._leadership.me, _micro_time(self._clock())
        spec.update(holderIdentity=me, renewTime=time, leaseDurationSeconds=LEASE_S)
        if holder != me:
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
            self._leadership.lost()
            return
        self._leadership.took(now)

    async def release(self) -> None:
        """So that another one need not wait for the end of the lease. Raises KubeError."""
        if not self.is_leader():
            return
        self._leadership.lost()
        lease = await self._kube.get("Lease", self._name)
        if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._leadership.me:
            await self._kube.update("Lease", {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})


def _micro_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
