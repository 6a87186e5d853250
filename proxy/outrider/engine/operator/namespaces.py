"""The namespaces whose pods are those of this operator: the ones that its webhook selects. Another operator of the
cluster has others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from outrider.core.operator.placement import selects
from outrider.operator_ports import Kube, KubeError, Manifest
from outrider.ports import Clock

log = logging.getLogger(__name__)

# Labels of namespaces change seldom.
_LOOK_S = 30.0


class Namespaces:
    """`selector`: a LabelSelector (Kubernetes meta/v1); an empty one selects all."""

    def __init__(self, kube: Kube, selector: Mapping[str, Any], clock: Clock) -> None:
        self._kube = kube
        self._selector = selector
        self._clock = clock
        self._known: dict[str, bool] = {}
        self._looked_at = 0.0

    async def with_own(self, pods: Iterable[Manifest]) -> list[Manifest]:
        """The pods in selected namespaces. Raises KubeError: it is not known which these are."""
        pods = list(pods)
        if not self._selector:
            return pods
        names = {pod["metadata"]["namespace"] for pod in pods}
        if names and (names - self._known.keys() or self._clock() - self._looked_at >= _LOOK_S):
            await self._look(names)
        return [pod for pod in pods if self._known.get(pod["metadata"]["namespace"])]

    async def _look(self, names: set[str]) -> None:
        try:
            found = await self._kube.all_of("Namespace")
        except KubeError as error:
            if names - self._known.keys():
                raise
            log.warning("the namespaces were not listed", extra={"why": str(error)})
            return
        self._known = {
            each["metadata"]["name"]: selects(self._selector, each["metadata"].get("labels") or {}) for each in found
        }
        self._looked_at = self._clock()
