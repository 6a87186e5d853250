"""Writes Events (Kubernetes core/v1) about pods. Without them the pods run as well: what fails is logged, and not tried
again."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from typing import Any

from outrider.operator_ports import Kube, KubeError, Manifest
from outrider.ports import Clock

log = logging.getLogger(__name__)

COMPONENT = "outrider-operator"
_NAME_MAX, _NOTE_MAX = 230, 1024
# The status for an object whose name is there already.
_TAKEN = 409


class EventWriter:
    """`me`: the name of this process. `clock`: seconds since the epoch. `calling`: limits the calls at once."""

    def __init__(self, kube: Kube, me: str, clock: Clock, calling: asyncio.Semaphore) -> None:
        self._kube = kube
        self._me = me
        self._clock = clock
        self._calling = calling

    async def emit(
        self, pod: Manifest, reason: str, note: str, *, is_warning: bool = False, is_once: bool = False
    ) -> None:  # fmt: skip
        """`is_once`: another process, or this one before a restart, may have written the same."""
        time = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = event_of(pod, reason, note, is_warning=is_warning, time=time, by=self._me, is_once=is_once)
        try:
            async with self._calling:
                await self._kube.emit(event)
        except KubeError as error:
            if not (is_once and error.code == _TAKEN):
                log.warning("an event was not written", extra={"reason": reason, "why": str(error)})


def event_of(
    pod: Manifest, reason: str, note: str, *, is_warning: bool, time: str, by: str, is_once: bool = False
) -> dict[str, Any]:  # fmt: skip
    """`time`: RFC 3339. `by`: the name of this process. `is_once`: each process gives it the same name, so that the API
    server takes one."""
    metadata = pod["metadata"]
    # Each part between two dots ends with a letter or a digit.
    begin = metadata["name"][:_NAME_MAX].rstrip("-.")
    name = {"generateName": f"{begin}."}
    if is_once:
        digest = hashlib.sha256(f"{metadata['uid']} {reason} {note}".encode()).hexdigest()[:12]
        name = {"name": f"{begin}.{digest}"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": metadata["namespace"], **name},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": note[:_NOTE_MAX],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": by,
    }  # fmt: skip
