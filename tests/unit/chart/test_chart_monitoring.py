"""Monitoring, the network policy and `helm test` of the Helm chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

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
    Manifest,
    Values,
    container,
    everything,
    in_cluster,
    manifests,
    of_kind,
    pod,
)
from tests.unit.chart.test_chart_warmups import notes, warm_pod


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[helm.Chart]:
    with in_cluster(tmp_path_factory.mktemp("cluster") / "chart") as loaded:
        yield loaded


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


def test_a_cluster_without_the_prometheus_operator_gets_the_rest_and_a_note(tmp_path: Path) -> None:
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
    environ = {entry["name"]: entry for entry in only["env"]}
    assert ("HOST_IP" in environ) == ("HOST_IP" in endpoint)
    # The key of the node's role is none that the proxy knows.
    assert environ["AWS_EC2_METADATA_DISABLED"]["value"] == "true"
    signs = "AWS_ACCESS_KEY_ID" in environ
    assert signs == (case != "defaults")
    assert not signs or environ["AWS_ACCESS_KEY_ID"]["valueFrom"]["secretKeyRef"]["name"] == "warm-key"
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
    page = CliRunner().invoke(with_commands(["doctor", "serve"]), ["doctor", "--help"], color=False, terminal_width=200)
    assert "--endpoint" in page.output
