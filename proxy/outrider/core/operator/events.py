"""Events (Kubernetes core/v1) about a pod."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

_NAME_MAX, _NOTE_MAX = 230, 1024
COMPONENT = "outrider-operator"


def event_of(
    pod: Mapping[str, Any], reason: str, note: str, *, is_warning: bool, time: str, by: str, is_once: bool = False
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
