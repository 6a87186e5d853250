"""Writes Events about pods whose wishes make no sense, although they run already.

`gates` looks at pending pods, every few seconds. A pod that starts at once is none by then. So each operator looks at
all pods of the namespaces in which its webhook has just warned. A pod has no uid in the webhook, and may still be
refused after it: the Event can only follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from outrider.core.operator.pod_patch import wishes_in
from outrider.core.operator.wishes import INJECT, SCHEDULE, WishError
from outrider.engine.operator.event_writer import EventWriter
from outrider.operator_ports import Kube

LOOK_S = 1.0
# From the webhook to the pod in the API server: other webhooks, and the write.
_ARRIVES_S = 1.0
# A second look is for those that took longer. A namespace in which each pod is wrong is listed so often.
_AGAIN_S = 5.0
# Older pods had their Event. The clock of the API server may differ.
_OLDER_S = 60.0


@dataclass(slots=True)
class _Watched:
    """`since`: the first warning. `look`: the next look; one at `until` or later is the last. `labels`: those of the
    pods to look at; None among them: all of the namespace."""

    since: float
    look: float
    until: float
    labels: set[str | None]


class Warned:
    """`clock`: seconds since the epoch."""

    def __init__(self, kube: Kube, events: EventWriter, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._events = events
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        # By uid.
        self._noted: dict[str, str] = {}

    def note(self, namespace: str, has_label: bool) -> None:
        """The webhook has warned of a pod there, which has a label of ours or none."""
        now = self._clock()
        watched = self._watched.setdefault(namespace, _Watched(now, now + _ARRIVES_S, now, set()))
        watched.until = now + _AGAIN_S
        watched.labels |= {SCHEDULE, INJECT} if has_label else {None}

    async def step(self) -> float:
        """Looks where it is time to. Returns the seconds until the next round. Raises KubeError."""
        for namespace, watched in list(self._watched.items()):
            now = self._clock()
            if now >= watched.look:
                watched.look = now + _AGAIN_S
                labels = {None} if None in watched.labels else watched.labels
                await self._look(namespace, labels, watched.since - _OLDER_S)
                if now >= watched.until:
                    del self._watched[namespace]
                    self._noted = {uid: where for uid, where in self._noted.items() if where != namespace}
        return LOOK_S

    async def _look(self, namespace: str, labels: Iterable[str | None], since: float) -> None:
        pods = {}
        for label in labels:
            pods.update({pod["metadata"]["uid"]: pod for pod in await self._kube.pods_in(namespace, label)})
        for uid, pod in pods.items():
            created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()
            if created >= since and uid not in self._noted:
                try:
                    wrong = wishes_in(pod).missing
                except WishError as error:
                    wrong = str(error)
                if wrong is not None:
                    self._noted[uid] = namespace
                    await self._events.emit(pod, "InvalidAnnotation", wrong, is_warning=True, is_once=True)
