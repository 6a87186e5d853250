"""Pods: manifests of tests, reviews of the API server, and any pod that a release of Kubernetes takes."""

from __future__ import annotations

import copy
import importlib.resources
import json
from functools import cache
from typing import Any

import jsonpatch
import jsonschema  # type: ignore[import-untyped]
from hypothesis import strategies as st
from referencing import Registry, Resource

from outrider.core.operator.pod_patch import GATE

Pod = dict[str, Any]
DATA = "s3://datasets/imagenet/"
_TOKEN = {"name": "kube-api-access-5drvz", "projected": {"defaultMode": 420, "sources": [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    {"downwardAPI": {"items": [
        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    ]}},
]}}  # fmt: skip
# Parts of a spec that are there before a webhook is asked.
_DEFAULTS = {
    "volumes": [_TOKEN], "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {},
    "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "tolerations": [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("not-ready", "unreachable")
    ],
}  # fmt: skip


def pod(
    *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, name: str = "train-0",
    created: str = "2026-01-01T00:00:00Z", **spec: Any,
) -> Pod:  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "team", "uid": f"uid-{name}", "creationTimestamp": created,
            "labels": labels or {}, "annotations": annotations or {},
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "train", "image": "train:1", "command": ["python", "train.py"]}],
            **copy.deepcopy(spec),
        },
    }  # fmt: skip


def near(data: str = DATA, *, warm: str | None = None, **given: Any) -> Pod:
    """A pod that is to run near its data. `warm`: its annotation of that name."""
    annotations = {"outrider.dev/data": data} | ({} if warm is None else {"outrider.dev/warm": warm})
    labels = {"outrider.dev/schedule": "true", **given.pop("labels", {})}
    return pod(labels=labels, annotations={**annotations, **given.pop("annotations", {})}, **given)


def review_of(manifest: Pod, *, kubernetes: str = "1.36", dry_run: bool = False) -> bytes:
    """As the API server of that Kubernetes asks about a pod that the controller of Jobs makes.

    The name is made after these webhooks, in 1.36, too; uid and times that the client sent are wiped. Defaults and the
    volume of the service account's token are there already.
    """
    sent = copy.deepcopy(manifest)
    metadata = sent["metadata"]
    name = metadata.pop("name")
    for key in ("uid", "creationTimestamp"):
        metadata.pop(key, None)
    is_new = tuple(map(int, kubernetes.split("."))) >= (1, 34)
    owner = {
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "5f3c1c7e-9f6b-4a0e-a6d0-1f2f5c9a2f10",
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    fields = {"f:metadata": {"f:generateName": {}}, "f:spec": {"f:containers": {'k:{"name":"train"}': {".": {}}}}}
    metadata |= {
        "generateName": f"{name}-", "finalizers": ["batch.kubernetes.io/job-tracking"], "ownerReferences": [owner],
        "managedFields": [{
            "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields,
        }],
        # The library leaves out times that are not set since 1.34.
        **({} if is_new else {"creationTimestamp": None}),
    }  # fmt: skip
    if isinstance(sent["spec"], dict):
        sent["spec"] = copy.deepcopy(_DEFAULTS) | sent["spec"]
    sent["status"] = {}
    user = {
        "username": "system:serviceaccount:kube-system:job-controller", "uid": "9f1c6f0e-3c37-4a5d-8d56-0c9c4d8b6f3a",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
        **({"extra": {"authentication.kubernetes.io/credential-id": ["JTI=0b9a"]}} if is_new else {}),
    }  # fmt: skip
    pods = {"group": "", "version": "v1", "resource": "pods"}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return json.dumps({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind, "resource": pods, "requestKind": kind, "requestResource": pods,
            "namespace": "team", "operation": "CREATE", "userInfo": user, "object": sent, "oldObject": None,
            "dryRun": dry_run, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }).encode()  # fmt: skip


def patched(manifest: Pod, patch: list[dict[str, Any]]) -> Pod:
    result: Pod = jsonpatch.JsonPatch(patch).apply(manifest)
    return result


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
