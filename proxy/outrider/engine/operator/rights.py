"""Whether this operator may open gates. One that may not closes none: the pods would wait for ever."""

from __future__ import annotations

from outrider.operator_ports import Kube, KubeError
from outrider.ports import Clock

CHECK_S = 20.0
# An answer of the API server counts for so long. It may be away for a while.
_PROVEN_S = 90.0
# Without the nodes a gate opens as well.
_NEEDED = (("list", "pods"), ("patch", "pods"), ("list", "namespaces"))


class Rights:
    """`lease`: the name of its Lease. Without that no replica acts."""

    def __init__(self, kube: Kube, lease: str, *, monotonic: Clock) -> None:
        self._kube = kube
        self._lease = lease
        self._monotonic = monotonic
        self._proven_at: float | None = None

    def may_open(self) -> bool:
        return self._proven_at is not None and self._monotonic() - self._proven_at < _PROVEN_S

    async def step(self) -> None:
        """Asks the API server. Raises KubeError: it does not answer, or refuses."""
        now = self._monotonic()
        for verb, resource in _NEEDED:
            if not await self._kube.may(verb, "", resource):
                self._refused(f"{verb} {resource}")
        lease = {"namespace": self._kube.namespace, "name": self._lease}
        if not await self._kube.may("update", "coordination.k8s.io", "leases", **lease):
            self._refused(f"update the lease {self._lease}")
        self._proven_at = now

    def _refused(self, call: str) -> None:
        self._proven_at = None
        raise KubeError(403, f"its service account may not {call}: no pod is held back")
