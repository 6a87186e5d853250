"""Answers to AdmissionReviews (admission.k8s.io/v1). Every pod is admitted, patched or not."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outrider.core.operator.affinity import Holding
from outrider.core.operator.pod_patch import Offers, patch_of
from outrider.core.operator.wishes import WishError, wishes_of
from outrider.engine.operator.metrics import OperatorMetrics

log = logging.getLogger(__name__)

# Longer warnings are cut by the API server, all of a request at 4,096 characters.
_WARNING_CHARS = 256


class ReviewError(ValueError):
    """That is no AdmissionReview of a pod."""


class Admission:
    """`holdings`: where data is; see `Holdings.of`."""

    def __init__(
        self, offers: Offers, holdings: Callable[[Sequence[str]], Sequence[Holding]], metrics: OperatorMetrics
    ) -> None:
        self._offers = offers
        self._holdings = holdings
        self._metrics = metrics

    def answer(self, body: bytes) -> dict[str, Any]:
        """The AdmissionReview to send back. Raises ReviewError."""
        try:
            review = json.loads(body)
            request = review["request"]
            uid, pod = str(request["uid"]), request["object"]
            version = str(review["apiVersion"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ReviewError(f"no AdmissionReview with a request and an object: {error}") from error
        response: dict[str, Any] = {"uid": uid, "allowed": True}
        try:
            patch = self._patch(pod)
        except WishError as error:
            result = "invalid"
            response["warnings"] = [f"outrider: {error}"[:_WARNING_CHARS]]
        except Exception:
            # The pod is in no known form, and must not wait for us.
            log.exception("a pod was admitted as it is")
            result = "failed"
        else:
            result = "patched" if patch else "unpatched"
            if patch:
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        self._metrics.admissions.labels(result).inc()
        return {"apiVersion": version, "kind": "AdmissionReview", "response": response}

    def _patch(self, pod: Mapping[str, Any]) -> list[dict[str, Any]]:
        metadata = pod.get("metadata") or {}
        wishes = wishes_of(metadata.get("labels") or {}, metadata.get("annotations") or {})
        return patch_of(pod, wishes, self._offers, self._holdings(wishes.data) if wishes.data else ())
