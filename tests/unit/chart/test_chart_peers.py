"""Peers in the Helm chart: the caches of the nodes are one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import helm_python as helm
import pytest

from outrider.adapters.cluster.endpoint_slices import PORT_NAME
from outrider.adapters.cluster.own_account import own_address, own_name
from outrider.adapters.cluster.peer_key import PeerKey
from outrider.settings.members import KubernetesPeers
from tests.support.chart import (
    CASES,
    NAMESPACE,
    Cluster,
    Manifest,
    Values,
    container,
    documents,
    in_cluster,
    manifests,
    of_peers,
    pod,
    started,
)

KEY_SECRET = f"v1/Secret/{NAMESPACE}/fast-outrider-peers"


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[helm.Chart]:
    with in_cluster(tmp_path_factory.mktemp("cluster") / "chart") as loaded:
        yield loaded


def key_of(chart: helm.Chart, values: Values) -> bytes:
    [key] = of_peers(chart, values)["Secret"]["data"].values()
    return base64.b64decode(key)


@pytest.mark.parametrize("case", ["defaults", "peers"])
def test_the_proxy_is_a_member_by_the_name_of_its_node(chart: helm.Chart, case: str, tmp_path: Path) -> None:
    values = CASES[case]
    settings = started(chart, values, tmp_path)
    service = of_peers(chart, values)["Service"]
    assert settings.peer_source == KubernetesPeers(NAMESPACE, service["metadata"]["name"])
    environ = Cluster.of(manifests(chart, values), values).environment()
    assert own_name(settings, environ, "fast-outrider-x7k2p") == "gpu-7"
    assert own_address(settings, 9482, environ) == "10.1.0.7:9482"
    assert settings.peer_key_file is not None
    assert PeerKey(settings.peer_key_file).accepted[0] == "k" * 64
    assert settings.peer_domain == ("cluster" if case == "peers" else "zone")


def test_the_members_are_the_pods_that_are_ready(chart: helm.Chart) -> None:
    service = of_peers(chart, {})["Service"]["spec"]
    labels = manifests(chart, {})["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert service["clusterIP"] == "None"
    assert not service.get("publishNotReadyAddresses", False)
    [port] = service["ports"]
    assert port["name"] == port["targetPort"] == PORT_NAME
    ports = {each["name"]: each["containerPort"] for each in container(chart, {})["ports"]}
    assert port["port"] == ports[port["targetPort"]] == 9482


@pytest.mark.parametrize("case", ["defaults", "own-account"])
def test_the_pods_may_list_and_watch_endpoint_slices_and_nothing_else(chart: helm.Chart, case: str) -> None:
    made = of_peers(chart, CASES[case])
    assert made["Role"]["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    binding = made["RoleBinding"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ("Role", made["Role"]["metadata"]["name"])
    spec = pod(chart, CASES[case])
    account = {"kind": "ServiceAccount", "name": spec["serviceAccountName"], "namespace": NAMESPACE}
    assert binding["subjects"] == [account]
    assert spec["automountServiceAccountToken"] is True


def test_the_key_is_made_once(tmp_path: Path) -> None:
    with in_cluster(tmp_path / "new") as chart:
        first = key_of(chart, {})
        made = of_peers(chart, {})["Secret"]
    with in_cluster(tmp_path / "another") as chart:
        assert key_of(chart, {}) != first, "no key is the same in two clusters"
    (tmp_path / "key").write_bytes(first)
    assert PeerKey(tmp_path / "key").accepted[0] == first.decode()
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    with in_cluster(tmp_path / "upgraded", objects={KEY_SECRET: made}) as chart:
        assert of_peers(chart, {})["Secret"]["data"] == made["data"]
        # A key by another name is not there.
        assert key_of(chart, {"peers": {"keySecret": {"key": "line"}}}) not in (b"", first)


def test_a_key_of_your_own_is_used_and_none_is_made(chart: helm.Chart) -> None:
    values = CASES["peers"]
    assert "Secret" not in of_peers(chart, values)
    [secret] = [volume["secret"] for volume in pod(chart, values)["volumes"] if volume["name"] == "peers"]
    assert secret["secretName"] == "peer-key"
    assert secret["items"] == [{"key": "line", "path": "line"}]


def test_without_peers_nothing_of_them_is_there(chart: helm.Chart, tmp_path: Path) -> None:
    alone = CASES["no-peers"]
    assert of_peers(chart, alone) == {}
    assert started(chart, alone, tmp_path).peers is None
    assert "peer" not in str(documents(chart, alone))
    assert documents(chart, CASES["sidecar"]) != []
    assert of_peers(chart, CASES["sidecar"]) == {}


@pytest.mark.parametrize(
    ("kubernetes", "values", "falls_back"),
    [
        ("1.36", {}, True),
        ("1.35", {}, True),
        ("1.34", {}, False),
        ("1.29", {}, False),
        ("1.36", {"service": {"fallback": False}}, False),
        # Another node's cache would not know of writes.
        ("1.36", {"peers": {"enabled": False}}, False),
    ],
)
def test_another_node_answers_only_where_the_own_one_comes_first(
    kubernetes: str, values: Values, falls_back: bool, tmp_path: Path
) -> None:
    with in_cluster(tmp_path / "chart", kubernetes=kubernetes) as chart:
        service: Manifest = manifests(chart, values)["Service"]["spec"]
        hook = container(chart, values).get("lifecycle")
        grace_s = pod(chart, values)["terminationGracePeriodSeconds"]
        notes = chart.render(values, name="fast", namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    assert service.get("trafficDistribution") == ("PreferSameNode" if falls_back else None)
    assert service.get("internalTrafficPolicy") == (None if falls_back else "Local")
    assert ("nothing answers" in notes) is not falls_back
    # New requests go elsewhere before the pod stops taking them, or there is nowhere to go.
    assert hook == ({"preStop": {"sleep": {"seconds": 5}}} if falls_back else None)
    assert grace_s == (50 if falls_back else 45)


def test_the_notes_name_objects_that_are_missing(tmp_path: Path) -> None:
    def notes(objects: dict[str, Manifest], values: Values) -> str:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        with in_cluster(directory, objects=objects) as chart:
            return chart.render(values, name="fast", namespace=NAMESPACE)["outrider/templates/NOTES.txt"]

    account = {"kind": "ServiceAccount"}
    default, own = (f"v1/ServiceAccount/{NAMESPACE}/{name}" for name in ("default", "s3-reader"))
    asked = CASES["own-account"]
    assert "NO SERVICE ACCOUNT: s3-reader" in notes({default: account}, asked)
    assert "NO SERVICE ACCOUNT" not in notes({default: account, own: account}, asked)
    assert "NO SERVICE ACCOUNT" not in notes({}, asked), "no cluster was asked"
    assert "NO SERVICE ACCOUNT" not in notes({default: account}, {})
    caches = f"apps/v1/DaemonSet/{NAMESPACE}/fast-outrider"
    warm = CASES["warm"]
    assert "WARM-UP train: it asks for 4 nodes, and the caches are on 3. It warms these, and fails until" in notes(
        {caches: {"status": {"desiredNumberScheduled": 3}}}, warm
    )
    assert "WARM-UP" not in notes({caches: {"status": {"desiredNumberScheduled": 4}}}, warm)
    assert "WARM-UP" not in notes({}, warm)
    assert "chown 65532:65532 /mnt/nvme0/outrider\n" in notes({}, CASES["node-disk"])
    assert "chown" not in notes({}, {})
    shown = notes({}, CASES["ephemeral"])
    assert "kubectl get priorityclass above-the-jobs\n" in shown
    assert "kubectl get storageclass local-nvme\n" in shown
