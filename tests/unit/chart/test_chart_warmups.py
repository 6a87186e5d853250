"""The warm-ups of the Helm chart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import helm_python as helm
import pytest
import yaml
from typer.testing import CliRunner

from outrider.cli import with_commands
from tests.support.chart import (
    CASES,
    CHART,
    NAMESPACE,
    RELEASE,
    Manifest,
    Values,
    container,
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
    shown = CliRunner().invoke(with_commands([command, "serve"]), [command, "--help"], color=False, terminal_width=200)
    assert shown.exit_code == 0
    assert {option for option in options if option.startswith("--")} == {"--wait", "--json", "--nodes"}
    assert all(option in shown.output for option in options if option.startswith("--"))


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
        environ = {entry["name"]: entry for entry in only["env"]}
        assert {environ[name]["valueFrom"]["secretKeyRef"]["name"] for name in environ if name.startswith("AWS_") and
                name != "AWS_ENDPOINT_URL"} == {"warm-key"}  # fmt: skip
        endpoint = environ["AWS_ENDPOINT_URL"]["value"]
        if case == "warm":
            assert endpoint == f"http://fast-outrider-nodes.{NAMESPACE}.svc:9480"
        elif case == "peers":
            assert endpoint == f"http://fast-outrider.{NAMESPACE}.svc:9480"
        else:
            assert endpoint == "http://$(HOST_IP):19480"
            # Kubernetes expands a variable only if it stands earlier in the list.
            assert list(environ).index("HOST_IP") < list(environ).index("AWS_ENDPOINT_URL")
            assert environ["HOST_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"


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
    def pod_of(url: str) -> Manifest:
        values = {"warm": {"keySecret": "key", "jobs": [{"name": "train", "url": url, "zones": 2}]}}
        [job] = of_kind(chart, values, "Job")
        return warm_pod(job)

    old, new = pod_of("s3://corpus/a/"), pod_of("s3://corpus/b/")
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
