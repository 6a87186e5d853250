"""The Helm chart, rendered by Helm's own engine, checked by Kubernetes' schemas and by the proxy's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import helm_python as helm
import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from outrider import __version__
from outrider.http.admin.server import AdminServer
from outrider.metrics import Metrics
from outrider.settings import load
from tests.support.chart import (
    BETWEEN,
    CASES,
    CHART,
    KUBERNETES,
    NAMESPACE,
    NODE_CASES,
    RELEASE,
    Cluster,
    Manifest,
    Values,
    container,
    documents,
    everything,
    in_cluster,
    manifests,
    pod,
    started,
)

WARNING = 2  # a severity of Helm's lint: 1 info, 2 warning, 3 error
any_case = pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())
any_node_case = pytest.mark.parametrize("values", NODE_CASES.values(), ids=NODE_CASES.keys())
# Custom resources are tested in tests/unit/chart/test_chart_monitoring.py.
UNKNOWN_TO_KUBERNETES = {"PodMonitor", "PrometheusRule"}
OF_THE_CLUSTER = {
    "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration", "ClusterRole",
    "ClusterRoleBinding",
}  # fmt: skip


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


@any_case
def test_lint_finds_nothing_but_the_missing_icon(values: Values) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [found for found in report["messages"] if found["severity"] >= WARNING] == []


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, helm.Chart]]:
    """The chart by version of its cluster."""
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("clusters")
        yield {each: stack.enter_context(in_cluster(directory / each, kubernetes=each)) for each in KUBERNETES}


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@any_case
def test_kubernetes_knows_every_field_of_every_manifest(
    charts: dict[str, helm.Chart], values: Values, kubernetes: str
) -> None:
    rendered = everything(charts[kubernetes], values)
    assert {manifest["kind"] for manifest in rendered} >= {"ConfigMap"}
    for manifest in rendered:
        if manifest["kind"] not in UNKNOWN_TO_KUBERNETES:
            kubernetes_validate.validate(manifest, kubernetes, strict=True)
        wanted = None if manifest["kind"] in OF_THE_CLUSTER else NAMESPACE
        assert manifest["metadata"].get("namespace") == wanted


@pytest.mark.parametrize("kubernetes", BETWEEN)
def test_each_kubernetes_between_them_knows_every_field(kubernetes: str, tmp_path: Path) -> None:
    """The value files of the parts whose manifests depend on the version; the others differ in settings alone."""
    with in_cluster(tmp_path / "chart", kubernetes=kubernetes) as chart:
        for case in ("defaults", "operator", "inject-endpoint", "warm"):
            for manifest in everything(chart, CASES[case]):
                if manifest["kind"] not in UNKNOWN_TO_KUBERNETES:
                    kubernetes_validate.validate(manifest, kubernetes, strict=True)


def test_the_oldest_kubernetes_tried_here_is_the_oldest_allowed_also_in_managed_clusters(chart: helm.Chart) -> None:
    # To semver v1.29.4-gke.1 is a pre-release. Only a constraint with a pre-release of its own allows it.
    assert chart.metadata["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


def test_a_build_with_its_commit_in_the_version_has_labels_that_kubernetes_takes(tmp_path: Path) -> None:
    with helm.Chart.load(helm.package(CHART, destination=tmp_path, version="0.1.0+b388344")) as packaged:
        labels = manifests(packaged, {})["Service"]["metadata"]["labels"]
    assert labels["helm.sh/chart"] == "outrider-0.1.0_b388344"
    assert labels["app.kubernetes.io/version"] == __version__


def test_the_schemas_of_kubernetes_find_a_wrong_field(chart: helm.Chart) -> None:
    daemon_set = manifests(chart, {})["DaemonSet"]
    daemon_set["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        kubernetes_validate.validate(daemon_set, KUBERNETES[-1], strict=True)


@any_node_case
def test_the_proxy_starts_with_the_settings_of_its_pod(chart: helm.Chart, values: Values, tmp_path: Path) -> None:
    settings = started(chart, values, tmp_path)
    assert (settings.listen, settings.admin, settings.auth) == ("[::]:9480", "[::]:9481", "sigv4")
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "open sesame"
    assert [client.access_key for client, _ in settings.known_clients] == ["AKTRAIN"]
    here = tmp_path / "var/cache/outrider"
    paths = values.get("cache", {}).get("hostPaths") or [""]
    assert settings.cache_dir == tuple(here / path.lstrip("/") for path in paths)
    assert all(directory.is_dir() for directory in settings.cache_dir)


def test_each_setting_arrives_as_it_was_written(chart: helm.Chart, tmp_path: Path) -> None:
    asked = CASES["all-settings"]["settings"]
    settings = started(chart, CASES["all-settings"], tmp_path)
    by_hand = load(asked, environ={})
    assert {name: getattr(settings, name) for name in asked} == {name: getattr(by_hand, name) for name in asked}
    assert (settings.catalog_entries, settings.drain_s) == (3_000_001, 2.5)


def test_the_default_settings_are_those_of_the_proxy_except_for_the_disk(chart: helm.Chart, tmp_path: Path) -> None:
    settings = started(chart, {}, tmp_path)
    by_chart = {"listen", "admin", "admin_token", "auth", "clients", "cache_dir", "cache_size", "min_free"}
    by_chart |= {"peers", "peer_listen", "peer_key_file"}
    assert settings.model_dump(exclude=by_chart) == load({}, environ={}).model_dump(exclude=by_chart)
    assert settings.cache_size.of(10**12) == 50 * 2**30
    assert settings.min_free.of(10**12) == 20 * 10**10


def test_a_service_named_outrider_does_no_harm(chart: helm.Chart, tmp_path: Path) -> None:
    rendered = manifests(chart, {}, release="outrider")
    assert rendered["Service"]["metadata"]["name"] == "outrider"
    del rendered["DaemonSet"]["spec"]["template"]["spec"]["enableServiceLinks"]
    assert Cluster.of(rendered, {}).start(tmp_path).cache_size.of(10**12) == 50 * 2**30


@any_node_case
def test_a_job_reaches_the_pod_of_its_own_node(chart: helm.Chart, values: Values) -> None:
    rendered = manifests(chart, values)
    daemon_set = rendered["DaemonSet"]["spec"]
    labels = daemon_set["template"]["metadata"]["labels"]
    assert daemon_set["selector"]["matchLabels"].items() <= labels.items()
    s3, *_ = container(chart, values)["ports"]
    assert s3.get("hostPort", 0) == values.get("hostPort", 0)
    if not values.get("service", {}).get("enabled", True):
        assert s3["hostPort"]
        assert "Service" not in rendered
        return
    service = rendered["Service"]["spec"]
    assert service["selector"].items() <= labels.items()
    # Kubernetes' default for the one that is left out lets any node answer.
    assert ("internalTrafficPolicy" in service) != ("trafficDistribution" in service)
    [port] = service["ports"]
    assert port["targetPort"] == "s3"
    assert port["port"] == values.get("service", {}).get("port", 9480)


def test_two_releases_in_a_namespace_do_not_select_each_others_pods(chart: helm.Chart) -> None:
    blue, green = (manifests(chart, {}, release) for release in ("blue", "green"))
    assert blue["Service"]["spec"]["selector"] != green["Service"]["spec"]["selector"]
    for kind in blue:
        assert blue[kind]["metadata"]["name"] != green[kind]["metadata"]["name"]


def test_releases_of_any_names_share_no_object(chart: helm.Chart) -> None:
    releases = ["a", "a-outrider", "outrider", "outrider-outrider", "r" * 52 + "1", "r" * 52 + "2"]
    values = {"warm": {"keySecret": "key", "jobs": [{"name": "w", "url": "s3://bucket/"}]}}
    names = [
        (each["kind"], each["metadata"]["name"]) for release in releases for each in everything(chart, values, release)
    ]
    assert len(set(names)) == len(names)
    assert ("DaemonSet", "outrider") in names
    assert ("DaemonSet", "a-outrider") in names


@pytest.mark.parametrize("release", ["outrider", "my-outrider-eu", "r" * 53, "n" * 52 + "7"])
def test_names_are_no_longer_than_a_service_allows(chart: helm.Chart, release: str) -> None:
    for manifest in everything(chart, {}, release):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])


async def nothing_held() -> dict[str, object]:
    return {"datasets": []}


async def test_the_ports_and_probes_are_those_of_the_proxy(chart: helm.Chart, tmp_path: Path) -> None:
    settings = started(chart, {}, tmp_path)
    only = container(chart, {})
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert ports == {
        name: int(at.rpartition(":")[2])
        for name, at in {"s3": settings.listen, "admin": settings.admin, "peer": str(settings.peer_listen_at)}.items()
    }
    served = AdminServer(Metrics(), lambda: True, dict, "token", 60.0, nothing_held).replies
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert only[probe]["httpGet"] == {"path": path, "port": "admin"}
        assert path in served


@any_node_case
def test_the_pod_needs_no_more_than_the_restricted_standard_grants(chart: helm.Chart, values: Values) -> None:
    """The exceptions are hostPath and hostPort. Source: Pod Security Standards, profile Restricted."""
    spec = pod(chart, values)
    user = values.get("runAsUser", 65532)
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    # Go writes a large number as 1.00068e+09. It equals the number here, but Kubernetes refuses it.
    assert isinstance(spec["securityContext"]["runAsUser"], int)
    assert container(chart, values)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
    assert spec["automountServiceAccountToken"] is values.get("peers", {}).get("enabled", True)
    assert container(chart, values)["resources"]["requests"].keys() == {"cpu", "memory"}
    writable = [mount["name"] for mount in container(chart, values)["volumeMounts"] if not mount.get("readOnly")]
    disks = values.get("cache", {}).get("hostPaths", ())
    assert writable == ([f"cache-{number}" for number, _ in enumerate(disks)] or ["cache"])
    # Root owns the file, the process reads it by its group, and no one else can.
    assert {volume["secret"]["defaultMode"] for volume in spec["volumes"] if "secret" in volume} == {0o440}


def test_the_cache_is_a_directory_of_the_node_or_ends_with_the_pod(chart: helm.Chart) -> None:
    def cache(values: Values) -> Manifest:
        [volume] = [volume for volume in pod(chart, values)["volumes"] if volume["name"] == "cache"]
        return {kind: rest for kind, rest in volume.items() if kind != "name"}

    assert cache({}) == {"emptyDir": {}}
    assert cache(CASES["ephemeral"])["ephemeral"]["volumeClaimTemplate"]["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local-nvme",
        "resources": {"requests": {"storage": "1.5Ti"}},
    }
    assert (
        "storageClassName"
        not in cache({"cache": {"ephemeral": {"size": "1Gi"}}})["ephemeral"]["volumeClaimTemplate"]["spec"]
    )
    assert cache(CASES["node-disk"]) == {"hostPath": {"path": "/mnt/nvme0/outrider", "type": "Directory"}}


def test_each_of_several_disks_is_mounted_where_the_proxy_keeps_a_part_of_the_cache(chart: helm.Chart) -> None:
    values = CASES["node-disks"]
    volumes = {volume["name"]: volume for volume in pod(chart, values)["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container(chart, values)["volumeMounts"]}
    for path in values["cache"]["hostPaths"]:
        name = mounts[f"/var/cache/outrider{path}"]
        assert volumes[name]["hostPath"] == {"path": path, "type": "Directory"}
    assert "/var/cache/outrider" not in mounts


def test_two_pods_never_share_a_nodes_cache_directory(chart: helm.Chart) -> None:
    strategy = manifests(chart, {})["DaemonSet"]["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


@pytest.mark.parametrize("drain_s", [0, 0.5, 30, 3600])
def test_the_pod_is_not_killed_while_it_drains(chart: helm.Chart, drain_s: float) -> None:
    grace_s = pod(chart, {"settings": {"drain_s": drain_s}})["terminationGracePeriodSeconds"]
    # Kubernetes counts the hook in.
    grace_s -= container(chart, {})["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert drain_s + 15 <= grace_s < drain_s + 16


def test_pods_are_replaced_for_other_settings_and_for_nothing_else(chart: helm.Chart) -> None:
    def template(values: Values) -> Manifest:
        found: Manifest = manifests(chart, values)["DaemonSet"]["spec"]["template"]
        return found

    assert template({"settings": {"log_level": "debug"}}) != template({})
    assert template({"settings": {"log_level": "debug"}})["spec"] == template({})["spec"]
    assert template({"service": {"port": 80}}) == template({})


def test_the_image_has_the_charts_app_version_by_default(chart: helm.Chart) -> None:
    assert chart.metadata["appVersion"] == __version__
    assert container(chart, {})["image"] == f"outrider:{__version__}"
    only = container(chart, CASES["own-names"])
    assert (only["image"], only["imagePullPolicy"]) == ("mirror.example.org/ml/outrider:0.1.0-rc1", "Always")
    assert pod(chart, CASES["own-names"])["imagePullSecrets"] == [{"name": "mirror"}]
    pinned = f"0.1.0@sha256:{'0' * 64}"
    assert container(chart, {"image": {"tag": pinned}})["image"] == f"outrider:{pinned}"


def test_the_service_account_carries_the_role_or_is_an_existing_one(chart: helm.Chart) -> None:
    account = manifests(chart, CASES["role"])["ServiceAccount"]
    assert account["metadata"]["annotations"] == CASES["role"]["serviceAccount"]["annotations"]
    assert account["metadata"]["name"] == pod(chart, CASES["role"])["serviceAccountName"]
    assert account["automountServiceAccountToken"] is False
    assert "ServiceAccount" not in manifests(chart, CASES["own-account"])
    assert pod(chart, CASES["own-account"])["serviceAccountName"] == "s3-reader"


def test_keys_for_the_origin_come_from_a_secret_or_from_the_aws_chain(chart: helm.Chart) -> None:
    alone = CASES["no-peers"]
    assert set(Cluster.of(manifests(chart, alone), alone).environment()) == {"OUTRIDER_ADMIN_TOKEN"}
    environ = Cluster.of(manifests(chart, CASES["own-names"]), CASES["own-names"]).environment()
    assert (environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"]) == ("AKPROXY", "hush too")


def test_the_variables_of_opentelemetry_reach_the_proxy(chart: helm.Chart) -> None:
    values = CASES["all-settings"]
    environ = Cluster.of(manifests(chart, values), values).environment()
    assert values["openTelemetry"].items() <= environ.items()
    assert values["openTelemetry"]["OTEL_TRACES_SAMPLER_ARG"] == "0.01"


def test_the_pods_run_on_the_nodes_and_with_the_resources_of_the_values(chart: helm.Chart) -> None:
    asked = CASES["gpu-nodes"]
    spec = pod(chart, asked)
    assert (spec["nodeSelector"], spec["tolerations"]) == (asked["nodeSelector"], asked["tolerations"])
    assert container(chart, asked)["resources"] == asked["resources"]
    asked = CASES["ephemeral"]
    spec = pod(chart, asked)
    assert (spec["affinity"], spec["priorityClassName"]) == (asked["affinity"], asked["priorityClassName"])
    template = manifests(chart, asked)["DaemonSet"]["spec"]["template"]
    assert asked["podAnnotations"].items() < template["metadata"]["annotations"].items()


def test_a_role_is_assumed_by_a_token_for_sts_alone(chart: helm.Chart) -> None:
    values = CASES["web-identity"]
    environ = Cluster.of(manifests(chart, values), values).environment()
    path = Path(environ["AWS_WEB_IDENTITY_TOKEN_FILE"])
    assert (environ["AWS_ROLE_ARN"], environ["AWS_REGION"]) == (values["webIdentity"]["roleArn"], "eu-central-1")
    [mount] = [
        mounted for mounted in container(chart, values)["volumeMounts"] if mounted["mountPath"] == str(path.parent)
    ]
    assert mount["readOnly"] is True
    [volume] = [
        candidate["projected"] for candidate in pod(chart, values)["volumes"] if candidate["name"] == mount["name"]
    ]
    [source] = volume["sources"]
    assert source["serviceAccountToken"] == {
        "audience": "sts.amazonaws.com", "expirationSeconds": 3600, "path": path.name,
    }  # fmt: skip


@any_node_case
def test_the_notes_name_the_endpoint_and_the_secrets_that_must_exist(chart: helm.Chart, values: Values) -> None:
    notes = chart.render(values, name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    rendered = manifests(chart, values)
    if "Service" in rendered:
        [port] = rendered["Service"]["spec"]["ports"]
        endpoint = f"http://{rendered['Service']['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
    else:
        endpoint = f"http://$(HOST_IP):{values['hostPort']}"
    assert f"AWS_ENDPOINT_URL={endpoint}\n" in notes
    text = str(documents(chart, values))
    wanted = set(re.findall(r"'secretKeyRef': {[^}]*'name': '([^']+)'", text))
    wanted |= {volume["secret"]["secretName"] for volume in pod(chart, values)["volumes"] if "secret" in volume}
    wanted -= {each["metadata"]["name"] for each in documents(chart, values) if each["kind"] == "Secret"}
    assert set(re.findall(rf"-n {NAMESPACE} create secret generic (\S+)", notes)) == wanted
    assert f"daemonset/{rendered['DaemonSet']['metadata']['name']}\n" in notes
    assert ("POD SECURITY" in notes) == bool(
        values.get("hostPort") or {"hostPath", "hostPaths"} & values.get("cache", {}).keys()
    )
    has_peers = values.get("peers", {}).get("enabled", True)
    assert ("EGRESS" in notes) == (has_peers and "egress" in values.get("networkPolicy", {}))
    assert ("NO PRIORITY CLASS" in notes) == ("priorityClassName" not in values)
