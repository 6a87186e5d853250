"""The Helm chart, rendered by Helm's own engine; its manifests judged by Kubernetes' schemas, its settings by ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import helm_python as helm
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from outrider import __version__
from outrider.http.admin import admin_app
from outrider.metrics import Metrics
from outrider.settings import Settings, SettingsError, load

CHART = Path(__file__).parents[2] / "charts" / "outrider"
RELEASE, NAMESPACE = "fast", "training"
Values = dict[str, Any]
Manifest = dict[str, Any]

# The least that Chart.yaml promises, and the newest that the schemas know.
KUBERNETES = ("1.29", kubernetes_validate.latest_version())
WARNING = 2  # of Helm's lint: 1 info, 2 warning, 3 error

CASES: dict[str, Values] = {
    "defaults": {},
    "node disk": {"cache": {"hostPath": "/mnt/nvme0/outrider"}, "settings": {"cache_size": "90%", "min_free": "5.5%"}},
    "all settings": {
        "settings": {
            "origin": "http://minio.storage.svc:9000",
            "region": "eu-central-1",
            "cache_size": "1.5TiB",
            "min_free": "200 GiB",
            "block_size": "16MiB",
            "domain": ["s3.example.org", "s3.internal"],
            "freshness": "ttl:300",
            "freshness_rules": [
                {"objects": "train-*/*", "freshness": "immutable"},
                {"objects": 'odd"\\name/*', "freshness": "ttl:0.5"},
            ],
            "list_cache": [{"prefixes": "train-*/*", "ttl_s": 60}],
            "stale_if_error": True,
            "policy": "fifo",
            "verify": "always",
            "origin_connections": 256,
            "fills": 128,
            "requests": 8192,
            "max_connections": 20_000,
            "buffer_bytes": "1GiB",
            "client_idle_s": 90,
            "client_timeout_s": 0.5,
            "catalog_entries": 3_000_001,
            "prefetch": "object",
            "prefetch_rules": [{"objects": "train-*/*", "prefetch": "off"}],
            "prefetch_bytes": "64MiB",
            "prefetch_bandwidth": "100MB",
            "workers": 2,
            "drain_s": 2.5,
            "price_per_gb": 0.09,
            "price_per_1000_gets": 0.0004,
            "log_level": "warning",
            "log_format": "text",
        }
    },
    "role": {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/read"}}},
    "own account": {"serviceAccount": {"create": False, "name": "s3-reader"}},
    "own names": {
        "image": {"repository": "mirror.example.org/ml/outrider", "tag": "0.1.0-rc1", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "mirror"}],
        "clientsSecret": {"name": "123", "key": "keys.toml"},
        "adminTokenSecret": {"name": "true", "key": "on"},
        "credentialsSecret": "minio-keys",
        "service": {"port": 80},
        "runAsUser": 1_000_680_000,
    },
    "gpu nodes": {
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "resources": {"requests": {"cpu": 2, "memory": "1.5Gi"}, "limits": {"memory": "64Gi"}},
    },
    "as a subchart": {"global": {"imageRegistry": "mirror.example.org"}},
}
any_case = pytest.mark.parametrize("values", CASES.values(), ids=CASES.keys())


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


def manifests(chart: helm.Chart, values: Values, release: str = RELEASE) -> dict[str, Manifest]:
    """What Helm would apply, by kind: there is one of each."""
    texts = chart.render(values, name=release, namespace=NAMESPACE)
    documents = [
        document
        for name, text in texts.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def pod(chart: helm.Chart, values: Values) -> Manifest:
    spec: Manifest = manifests(chart, values)["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def container(chart: helm.Chart, values: Values) -> Manifest:
    [only] = pod(chart, values)["containers"]
    assert isinstance(only, dict)
    return only


CLIENT = '[[client]]\naccess_key = "AKTRAIN"\nsecret_key = "hush"\ngrants = [{bucket = "train-*"}]\n'


class Cluster:
    """A stand-in for the API server and the kubelet: it has the Secrets that NOTES.txt asks for, and fills volumes."""

    def __init__(self, rendered: dict[str, Manifest], values: Values) -> None:
        clients = {"name": "outrider-clients", "key": "clients.toml", **values.get("clientsSecret", {})}
        admin = {"name": "outrider-admin", "key": "token", **values.get("adminTokenSecret", {})}
        self.secrets = {
            clients["name"]: {clients["key"]: CLIENT},
            admin["name"]: {admin["key"]: "open sesame"},
            "minio-keys": {"AWS_ACCESS_KEY_ID": "AKPROXY", "AWS_SECRET_ACCESS_KEY": "hush too"},
        }
        self.config_maps = {rendered["ConfigMap"]["metadata"]["name"]: rendered["ConfigMap"]["data"]}
        self._pod: Manifest = rendered["DaemonSet"]["spec"]["template"]["spec"]
        [self._container] = self._pod["containers"]
        # A ConfigMap key or a Secret key becomes a file; everything else is a directory to write to.
        self._volumes = {volume["name"]: self._files_of(volume) for volume in self._pod["volumes"]}

    def _files_of(self, volume: Manifest) -> dict[str, str]:
        if "configMap" in volume:
            files: dict[str, str] = self.config_maps[volume["configMap"]["name"]]
            return files
        if "secret" in volume:
            secret = self.secrets[volume["secret"]["secretName"]]
            return {item["path"]: secret[item["key"]] for item in volume["secret"]["items"]}
        return {}

    def environment(self) -> dict[str, str]:
        named = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in self._container["env"]}
        found = {name: self.secrets[source["name"]][source["key"]] for name, source in named.items()}
        # The variables of a Service named `outrider`, as the kubelet makes them unless it is told not to.
        links = {"OUTRIDER_SERVICE_HOST": "10.0.0.7", "OUTRIDER_PORT": "tcp://10.0.0.7:9480"}
        return found | (links if self._pod.get("enableServiceLinks", True) else {})

    def start(self, root: Path) -> Settings:
        """The settings that `args` leads the proxy to, with `root` in the place of the container's `/`."""
        for mount in self._container["volumeMounts"]:
            directory = root / mount["mountPath"].lstrip("/")
            directory.mkdir(parents=True)
            for name, text in self._volumes[mount["name"]].items():
                moved = re.sub(r'"(/etc/|/var/)', rf'"{root}\1', text) if name == "settings.toml" else text
                (directory / name).write_text(moved)
        command, option, config = self._container["args"]
        assert (command, option) == ("serve", "--config")
        return load({}, root / config.lstrip("/"), self.environment())


def started(chart: helm.Chart, values: Values, root: Path) -> Settings:
    return Cluster(manifests(chart, values), values).start(root)


@any_case
def test_lint_has_nothing_to_say_but_that_there_is_no_icon(values: Values) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [found for found in report["messages"] if found["severity"] >= WARNING] == []


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@any_case
def test_kubernetes_knows_every_field_of_every_manifest(chart: helm.Chart, values: Values, kubernetes: str) -> None:
    rendered = manifests(chart, values)
    assert set(rendered) >= {"ConfigMap", "DaemonSet", "Service"}
    for manifest in rendered.values():
        kubernetes_validate.validate(manifest, kubernetes, strict=True)
        assert manifest["metadata"]["namespace"] == NAMESPACE


def test_the_oldest_kubernetes_tried_here_is_the_oldest_allowed_also_in_managed_clusters(chart: helm.Chart) -> None:
    # To semver v1.29.4-gke.1 is a pre-release, which only a constraint with one of its own lets in.
    assert chart.metadata["kubeVersion"] == f">={KUBERNETES[0]}.0-0"


def test_a_build_with_its_commit_in_the_version_has_labels_that_kubernetes_takes(tmp_path: Path) -> None:
    with helm.Chart.load(helm.package(CHART, destination=tmp_path, version="0.1.0+b388344")) as packaged:
        labels = manifests(packaged, {})["Service"]["metadata"]["labels"]
    assert labels["helm.sh/chart"] == "outrider-0.1.0_b388344"
    assert labels["app.kubernetes.io/version"] == __version__


def test_the_schemas_of_kubernetes_would_have_told(chart: helm.Chart) -> None:
    daemon_set = manifests(chart, {})["DaemonSet"]
    daemon_set["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError, match="enableServiceLink"):
        kubernetes_validate.validate(daemon_set, KUBERNETES[-1], strict=True)


@any_case
def test_the_proxy_starts_with_what_the_pod_gives_it(chart: helm.Chart, values: Values, tmp_path: Path) -> None:
    settings = started(chart, values, tmp_path)
    assert (settings.listen, settings.admin, settings.auth) == ("0.0.0.0:9480", "0.0.0.0:9481", "sigv4")
    assert settings.admin_token is not None
    assert settings.admin_token.get_secret_value() == "open sesame"
    assert [client.access_key for client, _ in settings.known_clients] == ["AKTRAIN"]
    assert settings.cache_dir == tmp_path / "var/cache/outrider"
    assert settings.cache_dir.is_dir()


def test_each_setting_arrives_as_it_was_written(chart: helm.Chart, tmp_path: Path) -> None:
    asked = CASES["all settings"]["settings"]
    settings = started(chart, CASES["all settings"], tmp_path)
    by_hand = load(asked, environ={})
    assert {name: getattr(settings, name) for name in asked} == {name: getattr(by_hand, name) for name in asked}
    assert (settings.catalog_entries, settings.drain_s) == (3_000_001, 2.5)


def test_the_default_settings_are_those_of_the_proxy_but_for_the_disk(chart: helm.Chart, tmp_path: Path) -> None:
    settings = started(chart, {}, tmp_path)
    by_chart = {"listen", "admin", "admin_token", "auth", "clients", "cache_dir", "cache_size", "min_free"}
    assert settings.model_dump(exclude=by_chart) == load({}, environ={}).model_dump(exclude=by_chart)
    assert settings.cache_size.of(10**12) == 50 * 2**30
    assert settings.min_free.of(10**12) == 20 * 10**10


def test_without_service_links_a_service_named_outrider_does_no_harm(chart: helm.Chart, tmp_path: Path) -> None:
    rendered = manifests(chart, {}, release="outrider")
    assert rendered["Service"]["metadata"]["name"] == "outrider"
    del rendered["DaemonSet"]["spec"]["template"]["spec"]["enableServiceLinks"]
    with pytest.raises(SettingsError, match="OUTRIDER_PORT: no such setting"):
        Cluster(rendered, {}).start(tmp_path)


# What the chart sets itself, and what it does not offer yet.
OWN = {"listen", "admin", "admin_token", "auth", "clients", "cache_dir"}
# `cross_site` is of loopback mode, which no chart runs.
NOT_OFFERED = {"cross_site", "tls_cert", "tls_key"}


def test_the_schema_knows_the_settings_of_the_proxy(chart: helm.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    offered = schema["properties"]["settings"]["properties"]
    assert set(offered) == set(Settings.model_fields) - OWN - NOT_OFFERED


def test_the_schema_draws_the_same_limits_as_the_proxy(chart: helm.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    for name, said in schema["properties"]["settings"]["properties"].items():
        field = Settings.model_fields[name]
        if said.get("type") in ("integer", "number"):
            for bound, ours in (("minimum", "ge"), ("exclusiveMinimum", "gt"), ("maximum", "le")):
                limits = [getattr(limit, ours) for limit in field.metadata if hasattr(limit, ours)]
                assert ([said[bound]] if bound in said else []) == limits, (name, bound)
        if "enum" in said:
            allowed = {choice for arm in (field.annotation, *get_args(field.annotation)) for choice in get_args(arm)}
            assert set(said["enum"]) == {choice for choice in allowed if isinstance(choice, str)}, name


REFUSED: list[tuple[Values, str]] = [
    ({"replicas": 3}, "additional properties 'replicas'"),
    ({"image": {"digest": "sha256:0"}}, "additional properties 'digest'"),
    ({"image": {"tag": "a tag"}}, "/image/tag"),
    ({"image": {"repository": ""}}, "/image/repository"),
    ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
    ({"image": None}, "missing property 'image'"),
    ({"imagePullSecrets": ["mirror"]}, "/imagePullSecrets/0"),
    ({"settings": {"cach_size": "1GiB"}}, "additional properties 'cach_size'"),
    *(({"settings": {name: "x"}}, f"additional properties '{name}'") for name in sorted(OWN | NOT_OFFERED)),
    # Through Helm a number of bytes becomes a float, which the proxy refuses.
    ({"settings": {"cache_size": 50 * 2**30}}, "/settings/cache_size"),
    ({"settings": {"cache_size": "50Gi"}}, "/settings/cache_size"),
    ({"settings": {"min_free": "101%"}}, "/settings/min_free"),
    ({"settings": {"block_size": "5%"}}, "/settings/block_size"),
    ({"settings": {"freshness": "60"}}, "/settings/freshness"),
    ({"settings": {"freshness_rules": [{"objects": "*"}]}}, "missing property 'freshness'"),
    ({"settings": {"list_cache": [{"prefixes": "*", "ttl_s": 0}]}}, "/settings/list_cache/0/ttl_s"),
    ({"settings": {"origin": "minio:9000"}}, "/settings/origin"),
    ({"settings": {"policy": "random"}}, "/settings/policy"),
    ({"settings": {"fills": 0}}, "/settings/fills"),
    ({"settings": {"fills": 1.5}}, "/settings/fills"),
    ({"settings": {"client_timeout_s": 0}}, "/settings/client_timeout_s"),
    ({"settings": {"drain_s": None}}, "missing property 'drain_s'"),
    ({"settings": {"domain": "a,b"}}, "/settings/domain"),
    ({"cache": {"hostPath": "mnt/nvme"}}, "/cache/hostPath"),
    ({"cache": {"hostPath": "/"}}, "/cache/hostPath"),
    ({"clientsSecret": {"name": ""}}, "/clientsSecret/name"),
    ({"clientsSecret": {"key": "../clients.toml"}}, "/clientsSecret/key"),
    ({"adminTokenSecret": {"name": None}}, "missing property 'name'"),
    ({"adminTokenSecret": {"token": "open sesame"}}, "additional properties 'token'"),
    ({"credentialsSecret": "Not A Name"}, "/credentialsSecret"),
    ({"serviceAccount": {"create": False}}, "/serviceAccount/name"),
    ({"serviceAccount": {"create": False, "name": "a", "annotations": {"b": "c"}}}, "/serviceAccount/annotations"),
    ({"serviceAccount": {"annotations": {"a": True}}}, "/serviceAccount/annotations/a"),
    ({"service": {"port": 0}}, "/service/port"),
    ({"service": {"port": "9480"}}, "/service/port"),
    ({"runAsUser": 0}, "/runAsUser"),
    ({"resources": {"memory": "1Gi"}}, "additional properties 'memory'"),
    ({"resources": {"limits": {"memory": "1 GiB"}}}, "/resources/limits/memory"),
    ({"nodeSelector": {"gpu": True}}, "/nodeSelector/gpu"),
    ({"tolerations": [{"operator": "Any"}]}, "/tolerations/0/operator"),
]


@pytest.mark.parametrize(("values", "said"), REFUSED, ids=[str(values) for values, _ in REFUSED])
def test_nonsense_is_refused_by_name_before_anything_is_applied(chart: helm.Chart, values: Values, said: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=re.escape(said)):
        chart.render(values, name=RELEASE, namespace=NAMESPACE)


@any_case
def test_a_job_reaches_the_pod_of_its_own_node(chart: helm.Chart, values: Values) -> None:
    rendered = manifests(chart, values)
    service, daemon_set = rendered["Service"]["spec"], rendered["DaemonSet"]["spec"]
    labels = daemon_set["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert daemon_set["selector"]["matchLabels"].items() <= labels.items()
    assert service["internalTrafficPolicy"] == "Local"
    [port] = service["ports"]
    assert port["targetPort"] == "s3"
    assert port["port"] == values.get("service", {}).get("port", 9480)


def test_two_releases_in_a_namespace_do_not_select_each_others_pods(chart: helm.Chart) -> None:
    one, other = (manifests(chart, {}, release) for release in ("blue", "green"))
    assert one["Service"]["spec"]["selector"] != other["Service"]["spec"]["selector"]
    for kind in one:
        assert one[kind]["metadata"]["name"] != other[kind]["metadata"]["name"]


@pytest.mark.parametrize("release", ["outrider", "my-outrider-eu", "r" * 53, "n" * 52 + "7"])
def test_names_stay_within_what_a_service_may_be_called(chart: helm.Chart, release: str) -> None:
    for manifest in manifests(chart, {}, release).values():
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])


def test_the_ports_and_probes_are_those_of_the_proxy(chart: helm.Chart, tmp_path: Path) -> None:
    settings = started(chart, {}, tmp_path)
    only = container(chart, {})
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert ports == {
        name: int(at.rpartition(":")[2]) for name, at in {"s3": settings.listen, "admin": settings.admin}.items()
    }
    served = admin_app(Metrics(), lambda: True, dict, "token").router
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert only[probe]["httpGet"] == {"path": path, "port": "admin"}
        assert path in {resource.canonical for resource in served.resources()}


@any_case
def test_the_pod_asks_for_no_more_than_the_restricted_standard_grants(chart: helm.Chart, values: Values) -> None:
    """But for the hostPath. Source: Pod Security Standards, profile Restricted."""
    spec = pod(chart, values)
    user = values.get("runAsUser", 65532)
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    # 1.00068e+09, which Go makes of a large number, equals it here, but Kubernetes refuses it.
    assert isinstance(spec["securityContext"]["runAsUser"], int)
    assert container(chart, values)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
    assert spec["automountServiceAccountToken"] is False
    writable = [mount["name"] for mount in container(chart, values)["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["cache"]
    # Root owns the file; the process reads it by its group, and nobody else does.
    [clients] = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "clients"]
    assert clients["defaultMode"] == 0o440


def test_the_cache_is_on_the_nodes_own_directory_or_ends_with_the_pod(chart: helm.Chart) -> None:
    def cache(values: Values) -> Manifest:
        [volume] = [volume for volume in pod(chart, values)["volumes"] if volume["name"] == "cache"]
        return {kind: told for kind, told in volume.items() if kind != "name"}

    assert cache({}) == {"emptyDir": {}}
    assert cache(CASES["node disk"]) == {"hostPath": {"path": "/mnt/nvme0/outrider", "type": "Directory"}}


def test_two_pods_never_share_a_nodes_cache_directory(chart: helm.Chart) -> None:
    strategy = manifests(chart, {})["DaemonSet"]["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}}


@pytest.mark.parametrize("drain_s", [0, 0.5, 30, 3600])
def test_the_pod_is_not_killed_while_it_drains(chart: helm.Chart, drain_s: float) -> None:
    grace_s = pod(chart, {"settings": {"drain_s": drain_s}})["terminationGracePeriodSeconds"]
    assert drain_s + 15 <= grace_s < drain_s + 16


def test_other_settings_mean_other_pods_and_nothing_else_does(chart: helm.Chart) -> None:
    def template(values: Values) -> Manifest:
        found: Manifest = manifests(chart, values)["DaemonSet"]["spec"]["template"]
        return found

    assert template({"settings": {"log_level": "debug"}}) != template({})
    assert template({"settings": {"log_level": "debug"}})["spec"] == template({})["spec"]
    assert template({"service": {"port": 80}}) == template({})


def test_the_image_is_of_the_charts_app_version_unless_told(chart: helm.Chart) -> None:
    assert chart.metadata["appVersion"] == __version__
    assert container(chart, {})["image"] == f"outrider:{__version__}"
    told = container(chart, CASES["own names"])
    assert (told["image"], told["imagePullPolicy"]) == ("mirror.example.org/ml/outrider:0.1.0-rc1", "Always")
    assert pod(chart, CASES["own names"])["imagePullSecrets"] == [{"name": "mirror"}]


def test_the_account_carries_the_role_or_is_somebody_elses(chart: helm.Chart) -> None:
    account = manifests(chart, CASES["role"])["ServiceAccount"]
    assert account["metadata"]["annotations"] == CASES["role"]["serviceAccount"]["annotations"]
    assert account["metadata"]["name"] == pod(chart, CASES["role"])["serviceAccountName"]
    assert account["automountServiceAccountToken"] is False
    assert "ServiceAccount" not in manifests(chart, CASES["own account"])
    assert pod(chart, CASES["own account"])["serviceAccountName"] == "s3-reader"


def test_keys_for_the_origin_come_from_a_secret_or_from_the_aws_chain(chart: helm.Chart) -> None:
    assert set(Cluster(manifests(chart, {}), {}).environment()) == {"OUTRIDER_ADMIN_TOKEN"}
    told = Cluster(manifests(chart, CASES["own names"]), CASES["own names"]).environment()
    assert (told["AWS_ACCESS_KEY_ID"], told["AWS_SECRET_ACCESS_KEY"]) == ("AKPROXY", "hush too")


def test_the_pods_run_where_and_with_what_they_are_told(chart: helm.Chart) -> None:
    asked = CASES["gpu nodes"]
    spec = pod(chart, asked)
    assert (spec["nodeSelector"], spec["tolerations"]) == (asked["nodeSelector"], asked["tolerations"])
    assert container(chart, asked)["resources"] == asked["resources"]


@any_case
def test_the_notes_name_the_endpoint_and_the_secrets_that_must_exist(chart: helm.Chart, values: Values) -> None:
    notes = chart.render(values, name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    rendered = manifests(chart, values)
    service = rendered["Service"]
    [port] = service["spec"]["ports"]
    assert f"AWS_ENDPOINT_URL=http://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}\n" in notes
    wanted = {entry["valueFrom"]["secretKeyRef"]["name"] for entry in container(chart, values)["env"]}
    wanted |= {volume["secret"]["secretName"] for volume in pod(chart, values)["volumes"] if "secret" in volume}
    assert set(re.findall(rf"-n {NAMESPACE} create secret generic (\S+)", notes)) == wanted
    assert f"daemonset/{rendered['DaemonSet']['metadata']['name']}\n" in notes
