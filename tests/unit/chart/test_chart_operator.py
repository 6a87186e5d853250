"""The operator in the Helm chart: its rights, its webhook, and the sidecar that it puts into pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonpatch
import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import typer
import yaml

from outrider.cli import with_commands
from outrider.cli.operator import _sidecar
from outrider.core.operator.pod_patch import Offers, patch_of
from outrider.core.operator.wishes import Inject, Wishes
from outrider.settings import Settings, load
from tests.support.api_calls import API_CALLS, Scope
from tests.support.chart import (
    CASES,
    CHART,
    KUBERNETES,
    NAMESPACE,
    RELEASE,
    Manifest,
    Values,
    container,
    documents,
    in_cluster,
    manifests,
    of_kind,
    of_operator,
    of_peers,
    pod,
)
from tests.unit.chart.test_chart_monitoring import POD_MONITOR

VALUES = CASES["operator"]
NAME = "fast-outrider-operator"


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[helm.Chart]:
    with in_cluster(tmp_path_factory.mktemp("cluster") / "chart") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def made(chart: helm.Chart) -> dict[str, Manifest]:
    """The manifests by kind that are those of the operator alone."""
    return of_operator(chart, VALUES)


def template(made: dict[str, Manifest]) -> Manifest:
    found: Manifest = made["Deployment"]["spec"]["template"]
    return found


def only(made: dict[str, Manifest]) -> Manifest:
    [found] = template(made)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def options(made: dict[str, Manifest]) -> dict[str, str]:
    command, *words = only(made)["args"]
    assert command == "operator"
    return dict(word.removeprefix("--").split("=", 1) for word in words)


# -- rights ---------------------------------------------------------------------------------------------------------


def test_the_roles_allow_the_calls_that_the_operator_makes_and_no_others(made: dict[str, Manifest]) -> None:
    wanted = {
        (call.verb, call.group, call.resource, call.scope == Scope.CLUSTER, call.is_by_name) for call in API_CALLS
    }
    granted = {
        (verb, group, resource, kind == "ClusterRole", "resourceNames" in rule)
        for kind in ("ClusterRole", "Role")
        for rule in made[kind]["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == wanted
    # The caches are in the operator's own namespace.
    assert options(made)["cache"].partition("/")[0] == NAMESPACE


def test_the_page_has_each_permission_with_the_call_that_needs_it() -> None:
    rows = [
        line
        for line in (CHART.parents[1] / "docs/kubernetes.md").read_text().splitlines()
        if "| the operator |" in line
    ]
    stated = set()
    for row in rows:
        permission = row.split("|")[2]
        # As in "`get`, `update` on `secrets` by name; `create`".
        verbs, _, rest = permission.partition(" on ")
        [resource, *others] = re.findall(r"`([a-z.0-9]+)`", rest)
        stated |= {(verb, resource, "by name" in rest) for verb in re.findall(r"`([a-z]+)`", verbs)}
        stated |= {(verb, resource, False) for verb in others}
    wanted = {(call.verb, f"{call.resource}.{call.group}".rstrip("."), call.is_by_name) for call in API_CALLS}
    assert stated == wanted


def test_the_names_in_the_roles_are_those_that_the_operator_is_given(made: dict[str, Manifest]) -> None:
    name = options(made)["name"]
    by_kind = {
        resource: rule["resourceNames"]
        for kind in ("ClusterRole", "Role")
        for rule in made[kind]["rules"]
        if "resourceNames" in rule
        for resource in rule["resources"]
    }
    assert by_kind == {"mutatingwebhookconfigurations": [name], "leases": [name], "secrets": [f"{name}-ca"]}
    assert {made[kind]["metadata"]["name"] for kind in ("MutatingWebhookConfiguration", "Service")} == {name}


@pytest.mark.parametrize(("role", "binding"), [("ClusterRole", "ClusterRoleBinding"), ("Role", "RoleBinding")])
def test_the_rights_are_those_of_its_own_account(made: dict[str, Manifest], role: str, binding: str) -> None:
    assert made[binding]["roleRef"]["kind"] == role
    assert made[binding]["roleRef"]["name"] == made[role]["metadata"]["name"]
    account = template(made)["spec"]["serviceAccountName"]
    assert made[binding]["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    assert made["ServiceAccount"]["metadata"]["name"] == account


def test_the_caches_do_not_get_its_rights(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    assert pod(chart, VALUES)["serviceAccountName"] != made["ServiceAccount"]["metadata"]["name"]


# -- the webhook ----------------------------------------------------------------------------------------------------


def webhooks(made: dict[str, Manifest]) -> list[Manifest]:
    found: list[Manifest] = made["MutatingWebhookConfiguration"]["webhooks"]
    return found


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector of Kubernetes selects an object with these labels."""
    matches: dict[str, Any] = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _: key in labels,
        "DoesNotExist": lambda key, _: key not in labels,
    }
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        matches[each["operator"]](each["key"], each.get("values", ())) for each in selector["matchExpressions"]
    )


def test_a_webhook_that_is_away_stops_no_pod(made: dict[str, Manifest]) -> None:
    for each in webhooks(made):
        assert (each["failurePolicy"], each["timeoutSeconds"]) == ("Ignore", 2)
        assert (each["sideEffects"], each["reinvocationPolicy"]) == ("None", "IfNeeded")
        [rule] = each["rules"]
        assert (rule["operations"], rule["resources"], rule["scope"]) == (["CREATE"], ["pods"], "Namespaced")


def test_no_upgrade_takes_the_authority_away_that_the_operator_has_set(made: dict[str, Manifest]) -> None:
    """Helm leaves fields alone that a chart never sets, an empty one among those that it sets."""
    assert {frozenset(each["clientConfig"]) for each in webhooks(made)} == {frozenset({"service"})}
    assert "Secret" not in made


def test_the_webhook_leads_to_the_operator(made: dict[str, Manifest]) -> None:
    [port] = made["Service"]["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in only(made)["ports"]}
    words = options(made)
    assert words["webhook-listen"] == f":{ports[port['targetPort']]}"
    assert words["listen"] == f":{ports['admin']}"
    for each in webhooks(made):
        service = each["clientConfig"]["service"]
        assert (service["name"], service["namespace"]) == (made["Service"]["metadata"]["name"], NAMESPACE)
        assert (service["port"], service["path"]) == (port["port"], "/mutate")
    labels = template(made)["metadata"]["labels"].items()
    assert made["Service"]["spec"]["selector"].items() <= labels


NEAR, INJECTED = {"outrider.dev/schedule": "true"}, {"outrider.dev/inject": "sidecar"}


def test_each_pod_that_asks_for_it_is_seen_once(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    """Two webhooks would wait twice for an operator that does not answer."""
    seen = {each["name"].partition(".")[0]: each["objectSelector"] for each in webhooks(made)}

    def seeing(labels: dict[str, str]) -> list[str]:
        return [name for name, selector in seen.items() if selects(selector, labels)]

    assert seeing(NEAR) == seeing(NEAR | INJECTED) == ["schedule"]
    assert seeing(INJECTED) == seeing(INJECTED | {"outrider.dev/schedule": "false"}) == ["inject"]
    assert seeing({}) == ["unlabelled"]
    assert seeing({"outrider.dev/schedule": "false"}) == []
    # Its own pods and those of the caches start without it, whatever their labels are.
    for own in (template(made), manifests(chart, VALUES)["DaemonSet"]["spec"]["template"]):
        assert [seeing(own["metadata"]["labels"] | more) for more in ({}, NEAR, INJECTED)] == [[], [], []]


def test_a_pod_without_a_label_is_seen_where_the_api_server_can_see_that_it_names_data(
    made: dict[str, Manifest], tmp_path: Path
) -> None:
    [conditional] = [each for each in webhooks(made) if "matchConditions" in each]
    assert conditional["name"] == "unlabelled.outrider.dev"
    [condition] = conditional["matchConditions"]
    assert '"outrider.dev/data"' in condition["expression"]
    with in_cluster(tmp_path / "chart", kubernetes="1.29") as old:
        names = [each["name"] for each in webhooks(of_operator(old, VALUES))]
    assert names == ["inject.outrider.dev", "schedule.outrider.dev"]


def test_the_namespaces_of_kubernetes_are_left_alone(made: dict[str, Manifest]) -> None:
    name = "kubernetes.io/metadata.name"
    for each in webhooks(made):
        selector = each["namespaceSelector"]
        assert selects(selector, {name: "jobs", "team": "vision"})
        assert not selects(selector, {name: "jobs"})
        for system in ("kube-system", "kube-public", "kube-node-lease"):
            assert not selects(selector, {name: system, "team": "vision"})


# -- the pods -------------------------------------------------------------------------------------------------------


def test_the_operator_looks_at_the_namespaces_that_its_webhook_selects(made: dict[str, Manifest]) -> None:
    selector = json.loads(options(made)["namespace-selector"])
    assert [each["namespaceSelector"] for each in webhooks(made)] == [selector] * len(webhooks(made))
    assert selector["matchLabels"] == {"team": "vision"}


def test_the_command_takes_the_arguments_that_the_chart_gives(made: dict[str, Manifest]) -> None:
    command: Any = typer.main.get_command(with_commands(["operator", "serve"]))
    name, *words = only(made)["args"]
    parsed = command.commands[name].make_context(name, words).params
    parsed = {option.replace("_", "-"): str(value) for option, value in parsed.items()}
    assert parsed.items() >= options(made).items()


def test_it_learns_where_the_caches_are_and_signs_as_a_client(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    words = options(made)
    assert words["namespace"] == NAMESPACE
    assert words["cache"] == f"{NAMESPACE}/{of_peers(chart, VALUES)['Service']['metadata']['name']}"
    ports = {each["name"]: str(each["containerPort"]) for each in container(chart, VALUES)["ports"]}
    assert words["admin-port"] == ports["admin"]
    notes = chart.render(VALUES, name=RELEASE, namespace=NAMESPACE)["outrider/templates/NOTES.txt"]
    assert f"AWS_ENDPOINT_URL={words['endpoint']}\n" in notes
    assert f"rollout status deployment/{NAME}\n" in notes
    environ = {each["name"]: each for each in only(made)["env"]}
    keys = {environ[name]["valueFrom"]["secretKeyRef"]["name"] for name in environ if name.startswith("AWS_") and
            name != "AWS_EC2_METADATA_DISABLED"}  # fmt: skip
    assert keys == {"warm-key"}
    [token] = [each for each in container(chart, VALUES)["env"] if each["name"] == "OUTRIDER_ADMIN_TOKEN"]
    assert environ["OUTRIDER_ADMIN_TOKEN"] == token


def test_its_pods_have_no_more_rights_than_the_proxys(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    spec, proxy = template(made)["spec"], pod(chart, VALUES)
    assert spec["securityContext"].items() <= proxy["securityContext"].items()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert only(made)["securityContext"] == container(chart, VALUES)["securityContext"]
    assert only(made)["securityContext"]["readOnlyRootFilesystem"] is True
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    writable = [mount for mount in only(made)["volumeMounts"] if not mount.get("readOnly")]
    # The library of TLS reads keys from files only.
    assert [mount["mountPath"] for mount in writable] == ["/tmp"]
    assert [volumes[mount["name"]]["emptyDir"]["medium"] for mount in writable] == ["Memory"]
    assert spec["enableServiceLinks"] is False


def test_one_of_two_replicas_is_always_there(made: dict[str, Manifest]) -> None:
    spec, labels = made["Deployment"]["spec"], template(made)["metadata"]["labels"]
    assert spec["replicas"] == 2
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    budget = made["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    [spread] = template(made)["spec"]["topologySpreadConstraints"]
    for selector in (spec["selector"], budget["selector"], spread["labelSelector"]):
        assert selector["matchLabels"].items() <= labels.items()
        assert selector["matchLabels"]["app.kubernetes.io/component"] == "operator"
    assert spread["topologyKey"] == "kubernetes.io/hostname"


@pytest.mark.parametrize(("kubernetes", "is_beside"), [("1.34", True), ("1.35", False)])
def test_where_the_service_stays_on_its_node_the_operator_runs_beside_a_cache(
    kubernetes: str, is_beside: bool, tmp_path: Path
) -> None:
    with in_cluster(tmp_path / "chart", kubernetes=kubernetes) as chart:
        spec = template(of_operator(chart, VALUES))["spec"]
        caches = manifests(chart, VALUES)["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    where = VALUES if is_beside else VALUES["operator"]
    assert spec["nodeSelector"] == where["nodeSelector"]
    assert ("affinity" in spec) is is_beside
    if is_beside:
        [beside] = spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert beside["labelSelector"]["matchLabels"].items() <= caches.items()


def test_no_request_of_a_job_goes_to_it(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    labels = template(made)["metadata"]["labels"].items()
    services = [manifests(chart, VALUES)["Service"], of_peers(chart, VALUES)["Service"]]
    assert not any(each["spec"]["selector"].items() <= labels for each in services)


# -- network and monitoring -----------------------------------------------------------------------------------------


def test_the_policies_let_it_reach_the_caches_and_the_api_server_reach_it(
    chart: helm.Chart, made: dict[str, Manifest]
) -> None:
    labels = template(made)["metadata"]["labels"].items()
    caches = manifests(chart, VALUES)["NetworkPolicy"]["spec"]
    admitted = {
        rule["ports"][0]["port"]
        for rule in caches["ingress"]
        for each in rule["from"]
        if each.get("podSelector", {}).get("matchLabels", {"": ""}).items() <= labels
    }
    assert admitted == {"s3", "admin"}
    own = made["NetworkPolicy"]["spec"]
    assert own["podSelector"]["matchLabels"].items() <= labels
    webhook, admin = own["ingress"]
    # The API server has no labels. Without `from` anybody may connect.
    assert webhook == {"ports": [{"port": "webhook", "protocol": "TCP"}]}
    assert (admin["ports"][0]["port"], admin["from"]) == ("admin", VALUES["networkPolicy"]["adminFrom"])
    to_caches, *others = own["egress"]
    assert [each["port"] for each in to_caches["ports"]] == [9480, 9481]
    assert to_caches["to"] == [{"podSelector": caches["podSelector"]}]
    assert others == VALUES["networkPolicy"]["egress"]


def test_the_admin_port_of_the_caches_opens_for_the_operator_alone(chart: helm.Chart) -> None:
    values = VALUES | {"networkPolicy": {"enabled": True}}
    *_, admin = manifests(chart, values)["NetworkPolicy"]["spec"]["ingress"]
    [operator] = admin["from"]
    assert operator["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"


def test_prometheus_scrapes_it(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    [monitor] = [each for each in of_kind(chart, VALUES, "PodMonitor") if each["metadata"]["name"] == NAME]
    jsonschema.validate(monitor["spec"], POD_MONITOR)
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template(made)["metadata"]["labels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in only(made)["ports"]}
    assert "authorization" not in endpoint


# -- the sidecar ----------------------------------------------------------------------------------------------------


def sidecar(made: dict[str, Manifest]) -> Manifest:
    [text] = made["ConfigMap"]["data"].values()
    found: Manifest = json.loads(text)
    return found


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_the_operator_puts_the_sidecar_into_a_pod_that_kubernetes_takes(
    made: dict[str, Manifest], kubernetes: str, tmp_path: Path
) -> None:
    [(name, text)] = made["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    offers = Offers(None, _sidecar(tmp_path / name))
    spec = {"containers": [{"name": "a", "env": [{"name": "AWS_REGION", "value": "x"}]}]}
    found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
    patched = jsonpatch.apply_patch(found, patch_of(found, Wishes(inject=Inject.SIDECAR), offers, (), opener=None))
    kubernetes_validate.validate(patched, kubernetes, strict=True)
    [made_first] = patched["spec"]["initContainers"]
    assert (made_first["name"], made_first["restartPolicy"]) == ("outrider", "Always")
    environ = {each["name"]: each["value"] for each in patched["spec"]["containers"][0]["env"]}
    assert environ["AWS_ENDPOINT_URL"] == sidecar(made)["endpoint"]


def test_the_sidecar_starts_with_its_variables(made: dict[str, Manifest], tmp_path: Path) -> None:
    injected = sidecar(made)
    environ = {each["name"]: each["value"] for each in injected["container"]["env"] if "value" in each}
    settings = load({}, None, environ)
    assert (settings.auth, settings.region, settings.freshness) == ("loopback", "eu-central-1", "immutable")
    assert injected["endpoint"] == f"http://{settings.listen}"
    assert injected["container"]["args"] == ["serve"]
    mounts = {mount["mountPath"]: mount["name"] for mount in injected["container"]["volumeMounts"]}
    assert {volume["name"] for volume in injected["volumes"]} == {mounts[str(*settings.cache_dir)]}
    keys = {each["valueFrom"]["secretKeyRef"]["name"] for each in injected["container"]["env"] if "valueFrom" in each}
    assert keys == {"bucket-keys"}


def test_the_sidecar_leaves_room_on_the_disk_of_the_kubelet(chart: helm.Chart) -> None:
    """It evicts pods below 10 % free. The proxy itself takes 80 % of a disk that it has alone."""

    def started(settings: Values) -> Settings:
        of_sidecar = {"operator": VALUES["operator"] | {"sidecar": {"settings": settings}}}
        injected = sidecar(of_operator(chart, VALUES | of_sidecar))
        return load({}, None, {each["name"]: each["value"] for each in injected["container"]["env"] if "value" in each})

    usual = started({"region": "eu-west-1"})
    assert (usual.cache_size.of(10**12), usual.min_free.of(10**12)) == (50 * 2**30, 2 * 10**11)
    assert started({"cache_size": "80%"}).cache_size.of(100) == 80


def test_the_sidecar_is_that_of_the_other_mode_apart_from_its_settings(made: dict[str, Manifest]) -> None:
    """The example is what the template `outrider.sidecar` renders (tests/unit/chart/test_chart_sidecar.py)."""
    example = CHART.parents[1] / "examples/kubernetes/job-with-sidecar.yaml"
    [job] = [each for each in yaml.safe_load_all(example.read_text()) if each["kind"] == "Job"]
    [other] = job["spec"]["template"]["spec"]["initContainers"]
    own = sidecar(made)["container"]
    for each in ("name", "startupProbe", "livenessProbe", "securityContext", "resources", "restartPolicy"):
        assert own[each] == other[each], each


def test_its_file_is_the_one_that_is_mounted(made: dict[str, Manifest]) -> None:
    [volume] = [each for each in template(made)["spec"]["volumes"] if each["name"] == "sidecar"]
    [mount] = [each for each in only(made)["volumeMounts"] if each["name"] == "sidecar"]
    [file] = made["ConfigMap"]["data"]
    assert volume["configMap"]["name"] == made["ConfigMap"]["metadata"]["name"]
    assert options(made)["sidecar-file"] == f"{mount['mountPath']}/{file}"


def test_other_settings_of_the_sidecar_make_new_pods(chart: helm.Chart, made: dict[str, Manifest]) -> None:
    other = VALUES["operator"] | {"sidecar": {"settings": {"region": "eu-west-1"}}}
    changed = of_operator(chart, VALUES | {"operator": other})
    assert template(changed) != template(made)
    assert template(changed)["spec"] == template(made)["spec"]


def test_by_default_there_is_none(chart: helm.Chart) -> None:
    assert of_operator(chart, {}) == {}
    assert "operator" not in str(documents(chart, {}))
