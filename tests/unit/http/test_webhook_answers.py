"""Answers of the webhook: each pod is admitted."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.operator.affinity import Holding
from outrider.core.operator.pod_patch import Offers
from outrider.engine.operator.metrics import OperatorMetrics
from outrider.http.operator.admission import DECIDE_S, Admission, ReviewError
from tests.support.pages import ROOT
from tests.support.pods import KUBERNETES, near, patched, pod, review_of, validate


def held(_: Sequence[str]) -> list[Holding]:
    return [Holding("n", None, 1.0)]


class Asked:
    def __init__(
        self, holdings: Callable[[Sequence[str]], Sequence[Holding]] = held, *, may_gate: bool = True,
        decide_s: float = 60.0,
    ) -> None:  # fmt: skip
        self.metrics = OperatorMetrics()
        self.warned: list[tuple[str, bool]] = []
        self.admission = Admission(
            Offers("http://cache"), holdings, lambda: may_gate, self.metrics, name="outrider-operator",
            warned=lambda *warning: self.warned.append(warning),
            decide_s=decide_s,
        )  # fmt: skip

    async def response(self, body: bytes) -> dict[str, Any]:
        answer = await self.admission.answer(body)
        request = json.loads(body)
        assert (answer["apiVersion"], answer["kind"]) == (request["apiVersion"], "AdmissionReview")
        response: dict[str, Any] = answer["response"]
        assert (response["uid"], response["allowed"]) == (request["request"]["uid"], True)
        return response

    def count(self, result: str) -> float:
        return self.metrics.registry.get_sample_value("outrider_operator_admissions_total", {"result": result}) or 0.0


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("kubernetes", KUBERNETES)
async def test_a_pod_is_patched(asked: Asked, kubernetes: str, dry_run: bool) -> None:
    review = review_of(near(warm="0.9"), kubernetes=kubernetes, dry_run=dry_run)
    validate(json.loads(review)["request"]["object"], kubernetes)
    response = await asked.response(review)
    assert response["patchType"] == "JSONPatch"
    result = patched(json.loads(review)["request"]["object"], json.loads(base64.b64decode(response["patch"])))
    assert result["spec"]["schedulingGates"] == [{"name": "outrider.dev/warm"}]
    validate(result, kubernetes)
    assert asked.count("patched") == 1


async def test_a_pod_without_wishes_is_admitted_as_it_is(asked: Asked) -> None:
    assert set(await asked.response(review_of(pod()))) == {"uid", "allowed"}
    assert asked.count("unpatched") == 1


async def test_of_a_wish_that_makes_no_sense_its_user_is_warned(asked: Asked) -> None:
    response = await asked.response(review_of(near(warm="150 %")))
    assert "patch" not in response
    assert response["warnings"] == [
        """outrider: annotation outrider.dev/warm: '150 %' is no share of the data, like "0.95" or "95 %\""""
    ]
    assert asked.count("invalid") == 1
    assert asked.warned == [("team", True)]
    assert (await asked.response(review_of(near(warm="150 %"), dry_run=True)))["warnings"]
    await asked.response(review_of(near()))
    assert asked.warned == [("team", True)], "a dry run has no effects, and makes no pod"


@pytest.mark.parametrize(("labels", "result"), [({}, "unpatched"), ({"outrider.dev/inject": "endpoint"}, "patched")])
async def test_data_without_its_label_is_warned_of(asked: Asked, labels: dict[str, str], result: str) -> None:
    response = await asked.response(
        review_of(pod(labels=labels, annotations={"outrider.dev/data": "s3://corpus/train/"}))
    )
    [warning] = response["warnings"]
    assert 'without the label outrider.dev/schedule: "true"' in warning
    assert (asked.warned, asked.count(result)) == ([("team", bool(labels))], 1)


@pytest.mark.parametrize("spec", [None, [], {"containers": 7}, {"containers": [None]}, "text"])
async def test_a_pod_in_no_known_form_is_admitted_as_it_is(asked: Asked, spec: object) -> None:
    review = json.loads(review_of(pod(labels={"outrider.dev/inject": "endpoint"})))
    review["request"]["object"]["spec"] = spec
    assert "patch" not in await asked.response(json.dumps(review).encode())


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"request": {}}', b"\xff", b"[" * 100_000])
async def test_no_review_is_refused(asked: Asked, body: bytes) -> None:
    with pytest.raises(ReviewError):
        await asked.admission.answer(body)


async def test_a_decision_that_takes_too_long_is_no_patch() -> None:
    """The deadline is that of the code, and not of this machine: the decision never ends."""
    never = threading.Event()

    def hang(_: Sequence[str]) -> list[Holding]:
        never.wait()
        return held(_)

    slow = Asked(hang, decide_s=0.0)
    try:
        assert set(await slow.response(review_of(near()))) == {"uid", "allowed"}
        assert slow.count("late") == 1
    finally:
        never.set()


def test_the_answer_comes_before_the_api_server_gives_up() -> None:
    hooks = (ROOT / "charts/outrider/templates/operator/webhook.yaml").read_text()
    [timeout_s] = re.findall(r"timeoutSeconds: (\d+)", hooks)
    assert int(timeout_s) / 2 >= DECIDE_S


async def test_an_operator_that_may_not_open_gates_closes_none() -> None:
    powerless = Asked(may_gate=False)
    review = review_of(near(warm="0.9"))
    response = await powerless.response(review)
    assert "may not open gates" in response["warnings"][0]
    result = patched(json.loads(review)["request"]["object"], json.loads(base64.b64decode(response["patch"])))
    assert "schedulingGates" not in result["spec"]
    assert result["spec"]["affinity"], "it still prefers the nodes that hold its data"
    assert "warnings" not in await powerless.response(review_of(near()))


texts = st.text(max_size=5)
anything = st.recursive(
    st.none() | st.integers() | texts, lambda of: st.lists(of) | st.dictionaries(texts, of), max_leaves=8
)
labels_of = st.sampled_from(["outrider.dev/schedule", "outrider.dev/inject", "x"])
annotations_of = st.sampled_from(["outrider.dev/data", "outrider.dev/warm", "outrider.dev/warm-deadline"])
parts = st.sampled_from(["containers", "initContainers", "affinity", "volumes", "schedulingGates"])


@given(
    st.dictionaries(labels_of, st.sampled_from(["true", "sidecar", "endpoint", "é"])),
    st.dictionaries(annotations_of, st.sampled_from(["s3://b/k/", "0.5", "15m", "", "{0..9}"])),
    st.dictionaries(parts, anything),
)
async def test_each_pod_is_admitted(labels: dict[str, str], annotations: dict[str, str], spec: dict[str, Any]) -> None:
    await Asked().response(review_of(pod(labels=labels, annotations=annotations, **spec)))
