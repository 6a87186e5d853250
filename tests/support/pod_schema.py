"""Pods as the schemas of Kubernetes allow them: checked against them, and drawn from them.

The schemas are those of the package kubernetes-validate, in their strict form, which allows no unknown field. Its own
`validate` reads them from disk at each call.
"""

from __future__ import annotations

import importlib.resources
import json
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from hypothesis import strategies as st
from referencing import Registry, Resource

from outrider.core.operator.pod_patch import GATE
from tests.support.pods import Pod

Schema = dict[str, Any]
KUBERNETES = ("1.29", "1.36")
# Objects and lists within each other; deeper ones are null or empty. A patch changes the fifth.
_DEPTH_MAX = 7
_FIELDS_MAX, _ITEMS_MAX = 3, 2
# Fields that the webhook looks at, by the name of their type. Each of these is drawn in half of the pods.
_LOOKED_AT = {
    "PodSpec": ("affinity", "initContainers", "nodeName", "schedulingGates", "volumes"),
    "Affinity": ("nodeAffinity",),
    "NodeAffinity": ("preferredDuringSchedulingIgnoredDuringExecution",),
    "Container": ("env",),
}
_words = st.sampled_from([
    "true", "false", "sidecar", "endpoint", "s3://corpus/train/", "s3://corpus/{000..999}.tar s3://b/", "0.5", "95 %",
    "1e999", "15m", "outrider", "outrider-cache", GATE, "AWS_ENDPOINT_URL", "", "\0", "~1/", "ö", "٣",
    "{", "\U0001f433",
])  # fmt: skip
_texts = _words | st.text(max_size=4)
_SCHEDULE, _INJECT = "outrider.dev/schedule", "outrider.dev/inject"
_DATA, _WARM, _DEADLINE = "outrider.dev/data", "outrider.dev/warm", "outrider.dev/warm-deadline"
_GOOD_LABELS = (
    {_SCHEDULE: "true"}, {_INJECT: "sidecar"}, {_INJECT: "endpoint"}, {_SCHEDULE: "true", _INJECT: "endpoint"},
)  # fmt: skip
_GOOD_ANNOTATIONS = (
    {_DATA: "s3://corpus/train/"}, {_DATA: "s3://corpus/a/ s3://other/{0..9}.tar", _DEADLINE: "1h"},
)  # fmt: skip
_odd = st.none() | _texts
_odd_labels = st.dictionaries(st.sampled_from([_SCHEDULE, _INJECT, _DATA]), st.just("true") | _odd)
_odd_annotations = st.dictionaries(st.sampled_from([_DATA, _WARM, _DEADLINE, _INJECT]), st.just("0.5") | _odd)


@cache
def _schemas(version: str) -> tuple[Schema, Schema]:
    """The schema of a pod, and the definitions that it refers to."""
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema"
    [directory] = [each for each in folder.iterdir() if each.name == f"v{version}.0-local-strict"]
    pod, definitions = (json.loads((directory / f"{name}.json").read_text()) for name in ("pod-v1", "_definitions"))
    return pod, definitions


@cache
def _validator(version: str) -> Any:
    pod, definitions = _schemas(version)
    registry: Registry[Any] = Registry().with_resources(
        (each["$id"], Resource.from_contents(each)) for each in (pod, definitions)
    )
    return jsonschema.Draft202012Validator(pod, registry=registry)


def validate(manifest: Pod, version: str) -> None:
    """Raises jsonschema.ValidationError: it is no pod of that Kubernetes."""
    _validator(version).validate(manifest)


@st.composite
def pods(draw: st.DrawFn, version: str) -> Pod:
    """Any pod that the schema of that Kubernetes allows. Objects are small: a few fields of each are drawn."""
    schema, definitions = _schemas(version)
    drawn: Pod = _drawn(draw, schema, definitions["$defs"], "Pod", 0)
    drawn |= {"apiVersion": "v1", "kind": "Pod"}
    if draw(st.integers(0, 9)) < 9:
        drawn["spec"] = _drawn(draw, schema["properties"]["spec"], definitions["$defs"], "", 1)
    metadata = drawn.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if draw(st.integers(0, 2)) < 2:
        labels = draw(st.sampled_from(_GOOD_LABELS))
        warm = (
            {_WARM: draw(st.sampled_from(["0.5", "95 %"]))} if labels == _GOOD_LABELS[0] and draw(st.booleans()) else {}
        )
        annotations = draw(st.sampled_from(_GOOD_ANNOTATIONS)) | warm
    else:
        labels, annotations = labels | draw(_odd_labels), annotations | draw(_odd_annotations)
    drawn["metadata"] = {**metadata, "labels": labels, "annotations": annotations}
    return drawn


def _drawn(draw: st.DrawFn, schema: Schema, definitions: Schema, name: str, depth: int) -> Any:
    """`name`: that of the type, such as "PodSpec"."""
    if "$ref" in schema:
        called = schema["$ref"].rpartition("/")[2]
        return _drawn(draw, definitions[called], definitions, called.rpartition(".")[2], depth)
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if "oneOf" in schema:
        # Text or a number; null would be both.
        kind = draw(st.sampled_from([each["type"][0] for each in schema["oneOf"]]))
        return _drawn(draw, {"type": kind}, definitions, "", depth)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = next(each for each in kinds if each != "null")
    is_deep = kind in ("object", "array") and depth >= _DEPTH_MAX
    if "null" in kinds and (is_deep or draw(st.integers(0, 9)) == 9):
        return None
    if kind == "object":
        return _object(draw, schema, definitions, name, depth)
    if kind == "array":
        count = 0 if is_deep else draw(st.integers(0, _ITEMS_MAX))
        return [_drawn(draw, schema["items"], definitions, "", depth + 1) for _ in range(count)]
    if kind == "string":
        return draw(st.just("2026-01-01T00:00:00Z") if schema.get("format") == "date-time" else _texts)
    bits = 64 if schema.get("format") == "int64" else 32
    numbers = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return draw({"boolean": st.booleans(), "integer": numbers, "number": numbers | st.floats(0, 1)}[kind])


def _object(draw: st.DrawFn, schema: Schema, definitions: Schema, name: str, depth: int) -> dict[str, Any]:
    of: Schema = schema.get("properties") or {}
    if not of:
        values = schema.get("additionalProperties") or {"type": "string"}
        keys = draw(st.lists(_texts, max_size=_ITEMS_MAX, unique=True)) if depth < _DEPTH_MAX else ()
        return {key: _drawn(draw, values, definitions, "", depth + 1) for key in keys}
    names = list(schema.get("required") or ())
    if depth < _DEPTH_MAX:
        others = [each for each in of if each not in names]
        names += draw(st.lists(st.sampled_from(others), max_size=_FIELDS_MAX, unique=True)) if others else []
        names += [each for each in _LOOKED_AT.get(name, ()) if each not in names and draw(st.booleans())]
    return {each: _drawn(draw, of[each], definitions, "", depth + 1) for each in names}
