"""Warm-ups, monitoring and the network policy of the Helm chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from typer.testing import CliRunner

from outrider.cli import with_commands
from tests.support.chart import (
    CASES,
    CHART,
    HOOK,
    NAMESPACE,
    RELEASE,
    Manifest,
    Values,
    container,
    everything,
    in_cluster,
    manifests,
    of_kind,
    pod,
)


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[helm.Chart]:
    with in_cluster(tmp_path_factory.mktemp("cluster") / "chart") as loaded:
        yield loaded


def notes(chart: helm.Chart, values: Values) -> str:
    return chart.render(values, name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]


def warm_pod(job: Manifest) -> Manifest:
    spec = job["spec"]["jobTemplate"]["spec"] if job["kind"] == "CronJob" else job["spec"]
    found: Manifest = spec["template"]
    return found


# -- warm-ups -------------------------------------------------------------------------------------------------------


def test_a_warm_up_is_done_once_or_by_the_clock(chart: helm.Chart) -> None:
    [job] = of_kind(chart, CASES["warm"], "Job")
    [cron] = of_kind(chart, CASES["warm"], "CronJob")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (1, 1)
    assert (cron["spec"]["schedule"], cron["spec"]["concurrencyPolicy"]) == ("0 5 * * *", "Replace")
    assert [warm_pod(each)["spec"]["containers"][0]["args"] for each in (job, cron)] == [
        ["warm", "s3://corpus/train/", "--wait", "--json", "--nodes", "4"],
        ["warm", "s3://corpus/new/", "--wait", "--json", "--nodes", "1"],
    ]


def test_the_image_has_the_command_of_a_warm_up(chart: helm.Chart) -> None:
    pytest.importorskip("outrider.cli.warm")
    [job] = of_kind(chart, CASES["warm"], "Job")
    command, _, *options = warm_pod(job)["spec"]["containers"][0]["args"]
    told = CliRunner().invoke(with_commands([command, "serve"]), [command, "--help"], color=False, terminal_width=200)
    assert told.exit_code == 0
    assert {option for option in options if option.startswith("--")} == {"--wait", "--json", "--nodes"}
    assert all(option in told.output for option in options if option.startswith("--"))


def test_a_changed_warm_up_is_another_job_and_an_unchanged_one_is_the_same(chart: helm.Chart) -> None:
    def name(**changed: Any) -> str:
        values = {"warm": {"keySecret": "key", "jobs": [{"name": "train", "url": "s3://corpus/train/", **changed}]}}
        [job] = of_kind(chart, values, "Job")
        found: str = job["metadata"]["name"]
        return found

    assert name() == name()
    assert len({name(), name(url="s3://corpus/other/"), name(zones=2)}) == 3


@pytest.mark.parametrize("release", [RELEASE, "r" * 53])
def test_the_names_of_warm_ups_leave_room_for_the_suffixes_of_kubernetes(release: str) -> None:
    """Kubernetes adds 11 characters of time to a CronJob's name, and a suffix to a pod's. A label's value holds 63 in
    all."""
    values = {
        "warm": {
            "keySecret": "key",
            "jobs": [
                {"name": "n" * 20, "url": "s3://corpus/train/"},
                {"name": "m" * 20, "url": "s3://corpus/train/", "schedule": "@daily"},
            ],
        }
    }
    with helm.Chart.load(CHART) as loaded:
        texts = loaded.render(values, name=release, namespace=NAMESPACE)["outrider/templates/warm.yaml"]
    jobs = [each for each in yaml.safe_load_all(texts) if each]
    assert len(jobs) == 2
    for job in jobs:
        assert len(job["metadata"]["name"]) <= (52 if job["kind"] == "CronJob" else 63)
        assert all(len(value) <= 63 for value in warm_pod(job)["metadata"]["labels"].values())


@pytest.mark.parametrize("case", ["warm", "peers", "host-port"])
def test_a_warm_up_reaches_the_caches_as_a_client(chart: helm.Chart, case: str) -> None:
    for job in of_kind(chart, CASES[case], "Job") + of_kind(chart, CASES[case], "CronJob"):
        [only] = warm_pod(job)["spec"]["containers"]
        told = {entry["name"]: entry for entry in only["env"]}
        assert {told[name]["valueFrom"]["secretKeyRef"]["name"] for name in told if name.startswith("AWS_") and
                name != "AWS_ENDPOINT_URL"} == {"warm-key"}  # fmt: skip
        endpoint = told["AWS_ENDPOINT_URL"]["value"]
        if case == "warm":
            assert endpoint == f"http://fast-outrider-nodes.{NAMESPACE}.svc:9480"
        elif case == "peers":
            assert endpoint == f"http://fast-outrider.{NAMESPACE}.svc:9480"
        else:
            assert endpoint == "http://$(HOST_IP):19480"
            # Kubernetes expands a variable only if it stands earlier in the list.
            assert list(told).index("HOST_IP") < list(told).index("AWS_ENDPOINT_URL")
            assert told["HOST_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"


def test_without_peers_a_warm_up_finds_the_cache_of_each_node_ready_or_not(chart: helm.Chart) -> None:
    [found] = [each for each in of_kind(chart, CASES["warm"], "Service") if each["metadata"]["name"].endswith("-nodes")]
    assert (found["spec"]["clusterIP"], found["spec"]["publishNotReadyAddresses"]) == ("None", True)
    spec = manifests(chart, CASES["warm"])["DaemonSet"]["spec"]["template"]
    assert found["spec"]["selector"].items() <= spec["metadata"]["labels"].items()
    [port] = found["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in spec["spec"]["containers"][0]["ports"]}
    # No port is translated on the way to an address of a headless Service.
    assert ports[port["targetPort"]] == port["port"] == 9480
    for values in (CASES["peers"], CASES["no-peers"]):
        names = [each["metadata"]["name"] for each in of_kind(chart, values, "Service")]
        assert not any(name.endswith("-nodes") for name in names)


def test_a_warm_up_runs_where_the_caches_are(chart: helm.Chart) -> None:
    asked = CASES["warm"]
    for job in of_kind(chart, asked, "Job") + of_kind(chart, asked, "CronJob"):
        template = warm_pod(job)
        spec = template["spec"]
        assert (spec["nodeSelector"], spec["tolerations"]) == (asked["nodeSelector"], asked["tolerations"])
        assert spec["affinity"]["nodeAffinity"] == asked["affinity"]["nodeAffinity"]
        # A node with no room for the cache has none, and a warm-up there would be refused for ever.
        [beside] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert beside["topologyKey"] == "kubernetes.io/hostname"
        caches = manifests(chart, asked)["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
        assert beside["labelSelector"]["matchLabels"].items() <= caches.items()
        assert not beside["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        assert "podAntiAffinity" not in spec["affinity"]
    [job], [cron] = of_kind(chart, asked, "Job"), of_kind(chart, asked, "CronJob")
    assert warm_pod(job)["metadata"]["labels"] != warm_pod(cron)["metadata"]["labels"]


def _apart(job: Manifest) -> str:
    """Its pods keep apart by this label of their nodes."""
    template = warm_pod(job)
    [apart] = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    key: str = apart["topologyKey"]
    return key


def test_with_peers_one_pod_warms_a_zone(chart: helm.Chart) -> None:
    [job] = of_kind(chart, CASES["peers"], "Job")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    assert _apart(job) == "topology.kubernetes.io/zone"
    asked = CASES["warm"] | {"peers": {"enabled": True}}
    [job] = of_kind(chart, asked, "Job")
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (1, 1)
    assert "podAntiAffinity" not in warm_pod(job)["spec"]["affinity"]
    assert "WARM-UP train: with peers" in notes(chart, asked)


@pytest.mark.parametrize(("copies", "words"), [("all", ["--copies", "all"]), (2, ["--copies", "2"]), (None, [])])
def test_with_peers_a_warm_up_may_put_copies_at_several_caches(
    chart: helm.Chart, copies: object, words: list[str]
) -> None:
    train = {"name": "train", "url": "s3://corpus/train/"} | ({} if copies is None else {"copies": copies})
    values = {"warm": {"keySecret": "key", "jobs": [train]}}
    [job] = of_kind(chart, values, "Job")
    assert warm_pod(job)["spec"]["containers"][0]["args"] == ["warm", "s3://corpus/train/", "--wait", "--json", *words]


def test_a_warm_up_that_is_stuck_keeps_no_changed_one_from_its_node(chart: helm.Chart) -> None:
    def told(url: str) -> Manifest:
        values = {"warm": {"keySecret": "key", "jobs": [{"name": "train", "url": url, "zones": 2}]}}
        [job] = of_kind(chart, values, "Job")
        return warm_pod(job)

    old, new = told("s3://corpus/a/"), told("s3://corpus/b/")
    [apart] = new["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert not apart["labelSelector"]["matchLabels"].items() <= old["metadata"]["labels"].items()


def test_no_request_goes_to_the_pod_of_a_warm_up(chart: helm.Chart) -> None:
    rendered = manifests(chart, CASES["warm"])
    [job] = of_kind(chart, CASES["warm"], "Job")
    labels = warm_pod(job)["metadata"]["labels"].items()
    for selector in (
        rendered["Service"]["spec"]["selector"],
        rendered["DaemonSet"]["spec"]["selector"]["matchLabels"],
    ):
        assert not selector.items() <= labels


@pytest.mark.parametrize("kind", ["Job", "CronJob"])
def test_the_pod_of_a_warm_up_has_no_more_rights_than_the_proxys(chart: helm.Chart, kind: str) -> None:
    [job] = of_kind(chart, CASES["warm"], kind)
    spec, proxy = warm_pod(job)["spec"], pod(chart, CASES["warm"])
    [only] = spec["containers"]
    assert spec["securityContext"].items() <= proxy["securityContext"].items()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert only["securityContext"] == container(chart, CASES["warm"])["securityContext"]
    assert only["resources"]["requests"]
    assert spec["automountServiceAccountToken"] is spec["enableServiceLinks"] is False
    assert "volumes" not in spec


# -- monitoring and network -----------------------------------------------------------------------------------------

TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
# These are the parts of the operator's custom resources that this chart uses; any other field is a misspelling.
POD_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "podMetricsEndpoints"],
    "properties": {
        "selector": {"type": "object", "additionalProperties": False, "properties": {"matchLabels": TEXTS}},
        "podMetricsEndpoints": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "interval": {"type": "string", "pattern": "^[0-9]+(s|m|h)$"},
                    "authorization": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "type": {"const": "Bearer"},
                            "credentials": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["name", "key"],
                                "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
                            },
                        },
                    },
                    "relabelings": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "sourceLabels": {"type": "array", "items": {"type": "string"}},
                                "targetLabel": {"type": "string"},
                            },
                        },
                    },
                },
            },
        },
    },
}
RULES = {
    "type": "object",
    "additionalProperties": False,
    "required": ["groups"],
    "properties": {
        "groups": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "rules"],
                "properties": {
                    "name": {"type": "string"},
                    "interval": {"type": "string"},
                    "rules": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["expr"],
                            "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                            "properties": {
                                "alert": {"type": "string"},
                                "record": {"type": "string"},
                                "expr": {"type": ["string", "integer"]},
                                "for": {"type": "string"},
                                "keep_firing_for": {"type": "string"},
                                "labels": TEXTS,
                                "annotations": TEXTS,
                            },
                        },
                    },
                },
            },
        }
    },
}


def test_prometheus_scrapes_each_proxy_with_the_token(chart: helm.Chart) -> None:
    [monitor] = of_kind(chart, CASES["monitoring"], "PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    jsonschema.validate(monitor["spec"], POD_MONITOR)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    template = manifests(chart, CASES["monitoring"])["DaemonSet"]["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    only = container(chart, CASES["monitoring"])
    assert endpoint["port"] in {port["name"] for port in only["ports"]}
    assert endpoint["interval"] == "15s"
    [token] = [entry for entry in only["env"] if entry["name"] == "OUTRIDER_ADMIN_TOKEN"]
    assert endpoint["authorization"]["credentials"] == token["valueFrom"]["secretKeyRef"]


@pytest.mark.parametrize("case", ["monitoring", "sidecar"])
def test_the_rules_and_the_dashboard_are_deployed_unchanged(chart: helm.Chart, case: str) -> None:
    [rules] = of_kind(chart, CASES[case], "PrometheusRule")
    assert rules["apiVersion"] == "monitoring.coreos.com/v1"
    assert rules["spec"] == yaml.safe_load((CHART / "files/rules.yaml").read_text())
    jsonschema.validate(rules["spec"], RULES)
    [dashboard] = [
        each for each in of_kind(chart, CASES[case], "ConfigMap") if each["metadata"]["name"].endswith("-dashboard")
    ]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(dashboard["data"]["outrider.json"]) == json.loads((CHART / "files/dashboard.json").read_text())


def test_a_cluster_without_the_prometheus_operator_gets_the_rest_and_is_told(tmp_path: Path) -> None:
    with in_cluster(tmp_path / "chart", kinds=()) as plain:
        assert set(manifests(plain, CASES["monitoring"])) == {
            "ConfigMap", "DaemonSet", "NetworkPolicy", "Service", "ServiceAccount",
        }  # fmt: skip
        assert "NOT MADE: PodMonitor and PrometheusRule," in notes(plain, CASES["monitoring"])
        assert "NOT MADE: PrometheusRule," in notes(plain, CASES["sidecar"])
        assert "NOT MADE" not in notes(plain, {})


def test_the_real_chart_asks_helm_which_kinds_the_cluster_knows() -> None:
    """Helm's engine without a cluster knows Kubernetes' own kinds, and finds no object."""
    with helm.Chart.load(CHART) as offline:
        assert of_kind(offline, CASES["monitoring"], "PodMonitor") == []
        assert "trafficDistribution" in manifests(offline, {})["Service"]["spec"]
        assert "NO SERVICE ACCOUNT" not in notes(offline, CASES["own-account"])


def test_monitoring_is_off_by_default(chart: helm.Chart) -> None:
    assert set(manifests(chart, {})) == {"ConfigMap", "DaemonSet", "Service", "ServiceAccount"}


def test_the_schemas_of_the_custom_resources_find_a_wrong_field(chart: helm.Chart) -> None:
    [monitor] = of_kind(chart, CASES["monitoring"], "PodMonitor")
    monitor["spec"]["podMetricsEndpoint"] = monitor["spec"].pop("podMetricsEndpoints")
    with pytest.raises(jsonschema.ValidationError, match="podMetricsEndpoint"):
        jsonschema.validate(monitor["spec"], POD_MONITOR)


def test_a_network_policy_lets_in_the_pods_that_it_names_and_the_warm_ups(chart: helm.Chart) -> None:
    asked = CASES["monitoring"]["networkPolicy"]
    policy = manifests(chart, CASES["monitoring"])["NetworkPolicy"]["spec"]
    template = manifests(chart, CASES["monitoring"])["DaemonSet"]["spec"]["template"]
    assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    s3, peers, admin = policy["ingress"]
    assert [each["ports"][0]["port"] for each in (s3, peers, admin)] == ["s3", "peer", "admin"]
    # The members reach each other, and nobody else the peer port.
    [members] = peers["from"]
    assert members["podSelector"] == policy["podSelector"]
    to_members, *others = policy["egress"]
    assert to_members == {"ports": [{"port": 9482, "protocol": "TCP"}], "to": [members]}
    assert others == asked["egress"]
    [job] = of_kind(chart, CASES["warm"], "Job")
    warm, test, *others = s3["from"]
    assert warm["podSelector"]["matchLabels"].items() <= warm_pod(job)["metadata"]["labels"].items()
    assert test["podSelector"]["matchLabels"].items() <= helm_test(chart, {})["metadata"]["labels"].items()
    assert (others, admin["from"]) == (asked["s3From"], asked["adminFrom"])


def test_by_default_a_network_policy_allows_the_namespace_and_closes_the_admin_port(chart: helm.Chart) -> None:
    policy = manifests(chart, CASES["network-policy"])["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    s3, _ = policy["ingress"]
    assert s3["ports"] == [{"port": "s3", "protocol": "TCP"}]
    assert s3["from"][2:] == [{"podSelector": {}}]


# -- helm test ------------------------------------------------------------------------------------------------------


def helm_test(chart: helm.Chart, values: Values) -> Manifest:
    [found] = [each for each in everything(chart, values) if HOOK in each["metadata"].get("annotations", {})]
    assert found["metadata"]["annotations"][HOOK] == "test"
    return found


@pytest.mark.parametrize("case", ["warm", "host-port", "defaults"])
def test_helm_test_asks_the_address_of_the_jobs_as_one_of_them(chart: helm.Chart, case: str) -> None:
    found = helm_test(chart, CASES[case])
    spec = found["spec"]
    [only] = spec["containers"]
    command, option, endpoint = only["args"]
    assert (command, option) == ("doctor", "--endpoint")
    assert f"AWS_ENDPOINT_URL={endpoint}\n" in notes(chart, CASES[case])
    told = {entry["name"]: entry for entry in only["env"]}
    assert ("HOST_IP" in told) == ("HOST_IP" in endpoint)
    # The key of the node's role is none that the proxy knows.
    assert told["AWS_EC2_METADATA_DISABLED"]["value"] == "true"
    signs = "AWS_ACCESS_KEY_ID" in told
    assert signs == (case != "defaults")
    assert not signs or told["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "warm-key"
    # It runs where the caches should be, and is itself none of them.
    caches = manifests(chart, CASES[case])["DaemonSet"]["spec"]
    for where in ("nodeSelector", "tolerations"):
        assert spec.get(where) == caches["template"]["spec"].get(where)
    assert "podAffinity" not in spec.get("affinity", {})
    assert not caches["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()


def test_helm_test_is_let_into_a_restricted_namespace(chart: helm.Chart) -> None:
    spec, proxy = helm_test(chart, {})["spec"], pod(chart, {})
    [only] = spec["containers"]
    assert spec["securityContext"].items() <= proxy["securityContext"].items()
    assert only["securityContext"] == container(chart, {})["securityContext"]
    assert "volumes" not in spec


def test_the_image_has_the_command_of_helm_test() -> None:
    told = CliRunner().invoke(with_commands(["doctor", "serve"]), ["doctor", "--help"], color=False, terminal_width=200)
    assert "--endpoint" in told.output
