"""Answers to AdmissionReviews (admission.k8s.io/v1). Every pod is admitted, patched or not."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outrider.core.operator.affinity import Holding
from outrider.core.operator.pod_patch import Offers, has_label, patch_of, wishes_in
from outrider.core.operator.wishes import WishError, Wishes
from outrider.engine.operator.metrics import OperatorMetrics

log = logging.getLogger(__name__)

# The API server waits for 2 s (`timeoutSeconds` in the chart). The rest is for the way.
DECIDE_S = 1.0
# Longer warnings are cut by the API server, all of a request at 4,096 characters.
_WARNING_CHARS = 256
_NOT_GATED = "the pod does not wait for its data, since the operator may not open gates; its log has the reason"


class ReviewError(ValueError):
    """That is no AdmissionReview of a pod."""


class Admission:
    """`holdings`: where data is; see `Holdings.of`. It is asked by another thread. `may_gate`: see `Rights.may_open`.
    `name`: that of the operator.
    `warned`: gets the namespace of a pod whose wishes make no sense, and whether it has a label of ours; a dry run
    makes no such pod. `decide_s`: a pod
    whose patch is not made by then is admitted as it is."""

    def __init__(
        self, offers: Offers, holdings: Callable[[Sequence[str]], Sequence[Holding]], may_gate: Callable[[], bool],
        metrics: OperatorMetrics, *, name: str, warned: Callable[[str, bool], None] = lambda *_: None,
        decide_s: float = DECIDE_S,
    ) -> None:  # fmt: skip
        self._offers = offers
        self._holdings = holdings
        self._may_gate = may_gate
        self._metrics = metrics
        self._name = name
        self._warned = warned
        self._decide_s = decide_s

    async def answer(self, body: bytes) -> dict[str, Any]:
        """The AdmissionReview to send back. Raises ReviewError."""
        try:
            review = json.loads(body)
            request = review["request"]
            uid, pod = str(request["uid"]), request["object"]
            namespace, is_dry_run = request.get("namespace"), request.get("dryRun")
            version = str(review["apiVersion"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ReviewError(f"no AdmissionReview with a request and an object: {error}") from error
        response: dict[str, Any] = {"uid": uid, "allowed": True}
        wrong: str | None = None
        may_gate = self._may_gate()
        try:
            # On a thread: other pods need not wait, and the deadline holds.
            async with asyncio.timeout(self._decide_s):
                wishes, patch = await asyncio.to_thread(self._decide, pod, may_gate)
        except TimeoutError:
            log.warning("a pod was admitted as it is, since its patch took too long")
            result = "late"
        except WishError as error:
            result, wrong = "invalid", str(error)
        except Exception:
            # The pod is in no known form, and must not wait for us.
            log.exception("a pod was admitted as it is")
            result = "failed"
        else:
            result = "patched" if patch else "unpatched"
            wrong = wishes.missing
            if wishes.warm is not None and not may_gate:
                response["warnings"] = [f"outrider: {_NOT_GATED}"]
            if patch:
                response["patchType"] = "JSONPatch"
                response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        if wrong is not None:
            response["warnings"] = [f"outrider: {wrong}"[:_WARNING_CHARS]]
            if namespace and not is_dry_run:
                self._warned(str(namespace), has_label(pod))
        self._metrics.admissions.labels(result).inc()
        return {"apiVersion": version, "kind": "AdmissionReview", "response": response}

    def _decide(self, pod: Mapping[str, Any], may_gate: bool) -> tuple[Wishes, list[dict[str, Any]]]:
        wishes = wishes_in(pod)
        holdings = self._holdings(wishes.data) if wishes.data else ()
        return wishes, patch_of(pod, wishes, self._offers, holdings, opener=self._name if may_gate else None)
