"""The stand-in for a cluster: it refuses the same manifests as a cluster, and finds pods that would never start."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from helm_python import HelmError

from tests.support import fake_kubectl
from tests.support.chart import CHART, CLIENT, Manifest
from tests.support.fake_kubectl import Cluster, Refused, helm, kubectl

IMAGE = "image.repository=registry.example.org/outrider"
INSTALL = ["install", "outrider", str(CHART), "-n", "training", "--set"]


def secret(name: str, **data: str) -> Manifest:
    coded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "training"}, "data": coded}


NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}
SECRETS = [secret("outrider-clients", **{"clients.toml": CLIENT}), secret("outrider-admin", token="hush")]
KEY = secret("train-key", AWS_ACCESS_KEY_ID="AKTRAIN", AWS_SECRET_ACCESS_KEY="hush")
FORGED = secret("train-key", AWS_ACCESS_KEY_ID="AKTRAIN", AWS_SECRET_ACCESS_KEY="hash")
WARM = f"{IMAGE},warm.keySecret=train-key,warm.jobs[0].name=train,warm.jobs[0].url=s3://train-1/"


@pytest.mark.parametrize(
    ("values", "secrets", "wrong"),
    [
        (IMAGE, SECRETS, None),
        (WARM, [*SECRETS, KEY], None),
        (WARM, [*SECRETS, FORGED], "a key that the clients file does not have"),
        (WARM, SECRETS, "referenced and missing"),
        (IMAGE, [*SECRETS, KEY], "created and unused"),
        (IMAGE, [SECRETS[0], secret("outrider-admin", tokken="hush")], "referenced and missing"),
        (IMAGE, [secret("outrider-clients", **{"clients.toml": "[[client]]\n"}), SECRETS[1]], "clients.toml"),
        ("settings.region=eu-central-1", SECRETS, "^outrider:"),
    ],
)
def test_pods_that_would_not_start_are_found(
    values: str, secrets: list[Manifest], wrong: str | None, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.add([NAMESPACE, *secrets])
    helm(cluster, "", [*INSTALL, values])
    if wrong is None:
        fake_kubectl.check(cluster, tmp_path)
        return
    with pytest.raises((AssertionError, Refused, ValueError), match=wrong):
        fake_kubectl.check(cluster, tmp_path)


def test_the_stand_in_refuses_the_same_as_a_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    with pytest.raises(Refused, match='namespaces "training" not found'):
        helm(cluster, "", [*INSTALL, IMAGE])
    cluster.add([NAMESPACE, *SECRETS])
    with pytest.raises(Refused, match="already exists"):
        cluster.add([NAMESPACE])
    with pytest.raises(Refused, match="no such release"):
        helm(cluster, "", ["upgrade", *INSTALL[1:], IMAGE])
    for wrong in ("image.repository=REGISTRY/outrider", "cahce.hostPath=/mnt", "settings.freshness=never"):
        with pytest.raises((Refused, HelmError), match=wrong.partition("=")[0].partition(".")[0]):
            helm(cluster, "", [*INSTALL, wrong])
    rollout = ["rollout", "status", "daemonset/outrider"]
    with pytest.raises(Refused, match="not found in training"):
        kubectl(cluster, "", ["-n", "training", *rollout])
    helm(cluster, "", [*INSTALL, IMAGE])
    with pytest.raises(Refused, match="it is there already"):
        helm(cluster, "", [*INSTALL, IMAGE])
    kubectl(cluster, "", ["-n", "training", *rollout])
    with pytest.raises(Refused, match="not found in default"):
        kubectl(cluster, "", rollout)


def test_an_upgrade_keeps_the_values_only_with_the_flag_for_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    cluster.add([NAMESPACE, *SECRETS])
    helm(cluster, "", [*INSTALL, IMAGE, "--set", "settings.region=eu-central-1"])
    upgrade = ["upgrade", *INSTALL[1:], "service.port=9999"]
    helm(cluster, "", [*upgrade, "--reset-then-reuse-values"])
    fake_kubectl.check(cluster, tmp_path / "kept")
    helm(cluster, "", upgrade)
    with pytest.raises(AssertionError, match=r"^outrider:"):
        fake_kubectl.check(cluster, tmp_path / "lost")
