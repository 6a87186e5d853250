"""Any pod that the schema of a Kubernetes allows is admitted, patched or not, and is a pod of it afterwards."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.operator.affinity import Holding
from outrider.core.operator.pod_patch import Offers, Sidecar, opened
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.http.operator.admission import Admission
from tests.support.pods import KUBERNETES, Pod, patched, pods, validate
from tests.support.trials import fuzzing

pytestmark = pytest.mark.one_python

HELD = [Holding("node-a", "zone-1", 1.0), Holding("node-b", "zone-1", 0.3), Holding(None, "zone-1", 1.0)]
SIDECAR = Sidecar(
    {"name": "outrider", "image": "outrider:1", "volumeMounts": [{"name": "outrider-cache", "mountPath": "/cache"}]},
    [{"name": "outrider-cache", "emptyDir": {}}],
    "http://127.0.0.1:9480",
)


class Webhook:
    def __init__(self) -> None:
        self._metrics = OperatorMetrics()
        self._admission = Admission(
            Offers("http://cache", SIDECAR), lambda _: HELD, lambda: True, self._metrics, name="first", decide_s=600.0
        )

    async def changed(self, manifest: Pod) -> Pod:
        """The pod after its admission."""
        review = {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": manifest}}
        response: dict[str, Any] = (await self._admission.answer(json.dumps(review).encode()))["response"]
        assert (response["uid"], response["allowed"]) == ("u", True)
        if "patch" not in response:
            return manifest
        return patched(manifest, json.loads(base64.b64decode(response["patch"])))

    def count(self, result: str) -> float:
        return self._metrics.registry.get_sample_value("outrider_operator_admissions_total", {"result": result}) or 0.0


@pytest.mark.parametrize("version", KUBERNETES)
@fuzzing(40)
@given(data=st.data())
async def test_any_pod_is_admitted_and_stays_one(version: str, data: st.DataObject) -> None:
    manifest = data.draw(pods(version))
    validate(manifest, version)
    webhook = Webhook()
    result = await webhook.changed(manifest)
    validate(result, version)
    assert await webhook.changed(result) == result, "the API server may ask twice"
    assert webhook.count("failed") == webhook.count("late") == 0, "no pod is in an unknown form"
    done = patched(result, opened(result, HELD))
    validate(done, version)
    assert stays(manifest, result)
    if result.get("spec"):
        assert stays({**result, "spec": {**result["spec"], "schedulingGates": None}}, done), "all but its gate"


def stays(before: Any, after: Any) -> bool:
    """Nothing of `before` is changed or moved, and more may be there. Null is nothing."""
    if isinstance(before, dict) and isinstance(after, dict):
        return all(stays(value, after.get(name)) for name, value in before.items())
    if isinstance(before, list) and isinstance(after, list):
        rest = iter(after)
        return all(any(stays(entry, candidate) for candidate in rest) for entry in before)
    return before is None or bool(before == after)
