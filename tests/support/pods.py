"""Pods as users write them, and the AdmissionReviews in which an API server sends them.

Sources: Kubernetes' documentation, "Dynamic Admission Control", webhook request and response; k8s.io/apiserver v0.29.0
and v0.36.0, pkg/endpoints/handlers/create.go and pkg/admission/plugin/webhook/request/admissionreview.go. The
fields are those of a review that an API server sent in 2025, in the README of
github.com/edcelvista/_golang-k8s-custom-operator; that one is for a validating webhook, which is asked after the name
is made.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch

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
