"""Checks that the objects that a page's commands left in the stand-in cluster are complete and would start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]

from outrider.settings import Settings
from tests.support import chart
from tests.support.cluster import Cluster, Manifest

Reference = tuple[str, str, str]
"""Namespace, name and key of a Secret."""
_KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def is_of_kubernetes(manifest: Manifest) -> bool:
    """Not a custom resource, of which its schemas know nothing."""
    group = manifest["apiVersion"].rpartition("/")[0]
    return "." not in group or (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))


def check(cluster: Cluster, root: Path) -> None:
    """Raises AssertionError, or Refused: a Secret is missing."""
    for each in filter(is_of_kubernetes, cluster.objects):
        kubernetes_validate.validate(each, chart.KUBERNETES[-1], strict=True)
    wanted = {found for namespace, pod in cluster.pods() for found in _references(namespace, pod)}
    made = {
        (each["metadata"]["namespace"], each["metadata"]["name"], key)
        for each in cluster.of_kind("Secret")
        for key in each["data"]
    }
    assert wanted == made, f"Secrets: referenced and missing {wanted - made}; created and unused {made - wanted}"
    proxies = []
    for number, (namespace, pod) in enumerate(cluster.pods()):
        for container in _containers(pod):
            # Without a registry the image would be looked for among Docker Hub's own.
            assert "/" in container["image"], container["image"]
            if container["name"] == "outrider":
                proxies.append(_start(cluster, namespace, pod, container, root / str(number)))
    assert proxies, "no proxy is started"
    clients = {
        (client.access_key, secret.get_secret_value()) for each in proxies for client, secret in each.known_clients
    }
    if clients:
        signing = {found for namespace, pod in cluster.pods() for found in _signing_keys(cluster, namespace, pod)}
        assert signing <= clients, "a pod signs with a key that the clients file does not have"


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _references(namespace: str, pod: Manifest) -> Iterator[Reference]:
    for container in _containers(pod):
        for entry in container.get("env", ()):
            source = entry.get("valueFrom", {}).get("secretKeyRef")
            if source:
                yield namespace, source["name"], source["key"]
    for volume in pod.get("volumes", ()):
        for item in volume.get("secret", {}).get("items", ()):
            yield namespace, volume["secret"]["secretName"], item["key"]


def _start(cluster: Cluster, namespace: str, pod: Manifest, container: Manifest, root: Path) -> Settings:
    """Start with the settings, the clients file and the token that are in the cluster."""
    [name] = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    config_map = cluster.find("ConfigMap", namespace, name)
    assert config_map is not None, name
    names = {name for _, name, _ in _references(namespace, pod)}
    secrets = {name: cluster.secret(namespace, name) for name in names}
    return chart.Cluster(pod, container, config_map, secrets).start(root)


def _signing_keys(cluster: Cluster, namespace: str, pod: Manifest) -> Iterator[tuple[str, str]]:
    """The keys of the pods that send requests to the proxy."""
    for container in pod["containers"]:
        sources = {
            entry["name"]: entry["valueFrom"]["secretKeyRef"]
            for entry in container.get("env", ())
            if container["name"] != "outrider" and "secretKeyRef" in entry.get("valueFrom", {})
        }
        if sources:
            access, secret = (cluster.secret(namespace, sources[name]["name"])[sources[name]["key"]] for name in _KEY)
            yield access, secret
