"""Pods as users write them, and the AdmissionReviews in which an API server sends them.

Source: Kubernetes' documentation, "Dynamic Admission Control", webhook request and response.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch

Pod = dict[str, Any]
DATA = "s3://datasets/imagenet/"


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


def review_of(manifest: Pod, *, is_new: bool = False, dry_run: bool = False) -> bytes:
    """As servers from 1.29 on send it. `is_new`: as 1.36 does, where the name of a pod of a Job is made before the
    webhooks are asked (it is empty in older servers)."""
    sent = copy.deepcopy(manifest)
    metadata = sent["metadata"]
    for key in ("uid", "creationTimestamp"):
        metadata.pop(key, None)
    if not is_new:
        metadata["generateName"] = metadata.pop("name") + "-"
    pods = {"group": "", "version": "v1", "resource": "pods"}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    return json.dumps({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind, "resource": pods, "requestKind": kind, "requestResource": pods,
            **({"name": metadata["name"]} if is_new else {}),
            "namespace": "team", "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:job-controller", "uid": "9f1c",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "object": sent, "oldObject": None, "dryRun": dry_run,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }).encode()  # fmt: skip


def patched(manifest: Pod, patch: list[dict[str, Any]]) -> Pod:
    result: Pod = jsonpatch.JsonPatch(patch).apply(manifest)
    return result
