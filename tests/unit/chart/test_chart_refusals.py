"""values.schema.json refuses invalid values, by Helm's own validator, and knows the settings as the proxy does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

import helm_python as helm
import pytest

from outrider.settings import RETIRED, Settings
from tests.support.chart import CHART, NAMESPACE, RELEASE, Values


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as loaded:
        yield loaded


# The chart sets these settings itself; those of NOT_OFFERED it does not offer yet.
OWN = {"listen", "admin", "admin_token", "auth", "clients", "cache_dir"}
# `cross_site` is for web pages, which no pod of a chart serves, and only a sidecar runs in loopback mode.
# The chart makes a cluster itself. Members that trust each other by certificates are not offered yet.
PEERS = {name for name in Settings.model_fields if name.startswith("peer")} - {"peer_domain"}
NOT_OFFERED = {"cross_site", "tls_cert", "tls_key"} | PEERS


def test_the_schema_knows_the_settings_of_the_proxy(chart: helm.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    offered = schema["properties"]["settings"]["properties"]
    # Values of an earlier release still install.
    assert set(offered) == (set(Settings.model_fields) | RETIRED) - OWN - NOT_OFFERED


def test_the_schema_has_the_same_limits_as_the_proxy(chart: helm.Chart) -> None:
    schema = chart.schema
    assert schema is not None
    for name, said in schema["properties"]["settings"]["properties"].items():
        if name in RETIRED:
            continue
        field = Settings.model_fields[name]
        if said.get("type") in ("integer", "number"):
            for bound, ours in (("minimum", "ge"), ("exclusiveMinimum", "gt"), ("maximum", "le")):
                limits = [getattr(limit, ours) for limit in field.metadata if hasattr(limit, ours)]
                assert ([said[bound]] if bound in said else []) == limits, (name, bound)
        if "enum" in said:
            allowed = {choice for arm in (field.annotation, *get_args(field.annotation)) for choice in get_args(arm)}
            assert set(said["enum"]) == {choice for choice in allowed if isinstance(choice, str)}, name


WARM = {"name": "train", "url": "s3://bucket/train/"}
ROLE = "arn:aws:iam::123456789012:role/train"
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
    # Helm turns a number of bytes into a float, which the proxy refuses.
    ({"settings": {"cache_size": 50 * 2**30}}, "/settings/cache_size"),
    ({"settings": {"cache_size": "50Gi"}}, "/settings/cache_size"),
    ({"settings": {"min_free": "101%"}}, "/settings/min_free"),
    ({"settings": {"block_size": "5%"}}, "/settings/block_size"),
    ({"settings": {"freshness": "60"}}, "/settings/freshness"),
    ({"settings": {"freshness_rules": [{"objects": "*"}]}}, "missing property 'freshness'"),
    ({"settings": {"list_cache": [{"prefixes": "*", "ttl_s": 0}]}}, "/settings/list_cache/0/ttl_s"),
    ({"settings": {"origin": "minio:9000"}}, "/settings/origin"),
    ({"settings": {"policy": "random"}}, "/settings/policy"),
    ({"settings": {"policy": "lru", "prefetch": "epoch"}}, "/settings/prefetch"),
    (
        {"settings": {"policy": "fifo", "prefetch_rules": [{"objects": "*", "prefetch": "epoch"}]}},
        "/settings/prefetch_rules/0/prefetch",
    ),
    ({"settings": {"fills": 0}}, "/settings/fills"),
    ({"settings": {"fills": 1.5}}, "/settings/fills"),
    ({"settings": {"client_timeout_s": 0}}, "/settings/client_timeout_s"),
    ({"settings": {"drain_s": None}}, "missing property 'drain_s'"),
    ({"settings": {"domain": "a,b"}}, "/settings/domain"),
    ({"cache": {"hostPath": "mnt/nvme"}}, "/cache/hostPath"),
    ({"cache": {"hostPath": "/"}}, "/cache/hostPath"),
    ({"cache": {"hostPaths": ["/a", "/"]}}, "/cache/hostPaths/1"),
    ({"cache": {"hostPaths": ["/mnt/a", "/mnt/a"]}}, "/cache/hostPaths"),
    ({"cache": {"hostPath": "/mnt/a", "hostPaths": ["/mnt/b"]}}, "/cache/hostPath"),
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
    ({"service": {"fallback": "never"}}, "/service/fallback"),
    ({"settings": {"peer_domain": "node"}}, "/settings/peer_domain"),
    ({"peers": {"enabled": "no"}}, "/peers/enabled"),
    ({"peers": {"keySecret": {"name": "Not A Name"}}}, "/peers/keySecret/name"),
    ({"peers": {"keySecret": {"key": ""}}}, "/peers/keySecret/key"),
    ({"peers": {"key": "k" * 64}}, "additional properties 'key'"),
    ({"runAsUser": 0}, "/runAsUser"),
    ({"resources": {"memory": "1Gi"}}, "additional properties 'memory'"),
    ({"resources": {"limits": {"memory": "1 GiB"}}}, "/resources/limits/memory"),
    ({"mode": "deployment"}, "/mode"),
    ({"mode": "sidecar", "cache": {"hostPath": "/mnt/nvme0"}}, "/cache/hostPath"),
    ({"mode": "sidecar", "cache": {"hostPaths": ["/mnt/nvme0"]}}, "/cache/hostPaths"),
    ({"mode": "sidecar", "warm": {"jobs": [WARM], "keySecret": "key"}}, "/warm/jobs"),
    ({"mode": "sidecar", "hostPort": 9480}, "/hostPort"),
    ({"mode": "sidecar", "monitoring": {"podMonitor": {"enabled": True}}}, "/monitoring/podMonitor/enabled"),
    ({"mode": "sidecar", "networkPolicy": {"enabled": True}}, "/networkPolicy/enabled"),
    ({"cache": {"hostPath": "/mnt/nvme0", "ephemeral": {"size": "1Ti"}}}, "/cache/ephemeral/size"),
    ({"cache": {"hostPaths": ["/mnt/nvme0"], "ephemeral": {"size": "1Ti"}}}, "/cache/ephemeral/size"),
    ({"cache": {"ephemeral": {"size": "1TiB"}}}, "/cache/ephemeral/size"),
    ({"cache": {"ephemeral": {"size": "0Gi"}}}, "/cache/ephemeral/size"),
    ({"cache": {"ephemeral": {"storageClassName": "local"}}}, "/cache/ephemeral/storageClassName"),
    ({"service": {"enabled": False}}, "/hostPort"),
    ({"hostPort": 70_000}, "/hostPort"),
    ({"injectEndpoint": {"enabled": True}, "service": {"enabled": False}, "hostPort": 1}, "/service/enabled"),
    ({"injectEndpoint": {"namespaceSelector": {"matchlabels": {}}}}, "additional properties 'matchlabels'"),
    ({"mode": "sidecar", "injectEndpoint": {"enabled": True}}, "/injectEndpoint/enabled"),
    ({"operator": {"enabled": True}}, "/warm/keySecret"),
    ({"operator": {"enabled": True}, "warm": {"keySecret": "k"}, "peers": {"enabled": False}}, "/peers/enabled"),
    ({"operator": {"enabled": True}, "warm": {"keySecret": "k"}, "service": {"enabled": False}}, "/service/enabled"),
    ({"mode": "sidecar", "operator": {"enabled": True}, "warm": {"keySecret": "k"}}, "/operator/enabled"),
    ({"operator": {"replicas": 0}}, "/operator/replicas"),
    ({"operator": {"sidecar": {"settings": {"cache_size": "50Gi"}}}}, "/operator/sidecar/settings/cache_size"),
    # A variable has no place for a list.
    ({"operator": {"sidecar": {"settings": {"freshness_rules": []}}}}, "additional properties 'freshness_rules'"),
    ({"webIdentity": {"roleArn": "train"}}, "/webIdentity/roleArn"),
    ({"webIdentity": {"roleArn": ROLE}, "credentialsSecret": "keys"}, "/credentialsSecret"),
    ({"image": {"tag": "0.1.0@sha256:0"}}, "/image/tag"),
    ({"warm": {"jobs": [WARM]}}, "/warm/keySecret"),
    ({"warm": {"jobs": [WARM | {"url": "bucket/train/"}], "keySecret": "key"}}, "/warm/jobs/0/url"),
    ({"warm": {"jobs": [WARM | {"schedule": "daily"}], "keySecret": "key"}}, "/warm/jobs/0/schedule"),
    ({"warm": {"jobs": [WARM | {"nodes": 0}], "keySecret": "key"}}, "/warm/jobs/0/nodes"),
    ({"warm": {"jobs": [WARM | {"zones": 0}], "keySecret": "key"}}, "/warm/jobs/0/zones"),
    *(
        ({"warm": {"jobs": [WARM | {"copies": wrong}], "keySecret": "key"}}, "/warm/jobs/0/copies")
        for wrong in ("some", 0, 1.5)
    ),
    ({"warm": {"jobs": [WARM | {"name": "Train"}], "keySecret": "key"}}, "/warm/jobs/0/name"),
    ({"warm": {"jobs": [{"name": "train"}], "keySecret": "key"}}, "missing property 'url'"),
    ({"monitoring": {"podMonitor": {"interval": "often"}}}, "/monitoring/podMonitor/interval"),
    ({"monitoring": {"rules": {"interval": "30s"}}}, "additional properties 'interval'"),
    ({"networkPolicy": {"s3From": [{}]}}, "/networkPolicy/s3From/0"),
    ({"networkPolicy": {"s3From": [{"podselector": {}}]}}, "additional properties 'podselector'"),
    ({"networkPolicy": {"egress": "none"}}, "/networkPolicy/egress"),
    ({"affinity": {"nodeaffinity": {}}}, "additional properties 'nodeaffinity'"),
    ({"priorityClassName": "Above The Jobs"}, "/priorityClassName"),
    ({"openTelemetry": {"OUTRIDER_ORIGIN": "http://elsewhere"}}, "invalid propertyName 'OUTRIDER_ORIGIN'"),
    ({"openTelemetry": {"OTEL_TRACES_SAMPLER_ARG": 0.01}}, "/openTelemetry/OTEL_TRACES_SAMPLER_ARG"),
    ({"podAnnotations": {"sidecar.istio.io/inject": False}}, "/podAnnotations"),
    ({"nodeSelector": {"gpu": True}}, "/nodeSelector/gpu"),
    ({"tolerations": [{"operator": "Any"}]}, "/tolerations/0/operator"),
]


def test_two_warm_ups_of_one_name_are_refused(chart: helm.Chart) -> None:
    values = {"warm": {"jobs": [WARM, WARM | {"schedule": "@daily"}], "keySecret": "key"}}
    with pytest.raises(helm.HelmRenderError, match="two of them have the same name"):
        chart.render(values, name=RELEASE, namespace=NAMESPACE)


def test_copies_without_peers_are_refused(chart: helm.Chart) -> None:
    values = {"warm": {"jobs": [WARM | {"copies": "all"}], "keySecret": "key"}, "peers": {"enabled": False}}
    with pytest.raises(helm.HelmRenderError, match=re.escape("train has copies, which takes peers.enabled")):
        chart.render(values, name=RELEASE, namespace=NAMESPACE)


@pytest.mark.parametrize(("values", "said"), REFUSED, ids=[str(values) for values, _ in REFUSED])
def test_an_invalid_value_is_refused_by_name_before_anything_is_applied(
    chart: helm.Chart, values: Values, said: str
) -> None:
    with pytest.raises(helm.HelmValuesError, match=re.escape(said)):
        chart.render(values, name=RELEASE, namespace=NAMESPACE)
