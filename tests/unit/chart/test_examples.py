"""The manifests of examples/kubernetes are known to Kubernetes and fit the chart. The list of examples is complete."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import helm_python as helm
import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from outrider.core.operator.wishes import Inject, wishes_of
from outrider.settings import load
from tests.support.chart import CHART, KUBERNETES, NAMESPACE
from tests.support.fake_kubectl import is_of_kubernetes

EXAMPLES = CHART.parents[1] / "examples"
MANIFESTS = (
    "job-with-sidecar.yaml",
    "job-with-mount.yaml",
    "pytorch-with-daemonset.yaml",
    "job-with-injected-sidecar.yaml",
    "kueue-with-warm-gate.yaml",
)
Manifest = dict[str, Any]


def manifests(name: str) -> dict[str, Manifest]:
    documents = yaml.safe_load_all((EXAMPLES / "kubernetes" / name).read_text())
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(name: str, kubernetes: str) -> None:
    for manifest in manifests(name).values():
        if is_of_kubernetes(manifest):
            kubernetes_validate.validate(manifest, kubernetes, strict=True)
        assert manifest["metadata"]["namespace"] == NAMESPACE


@pytest.mark.parametrize("name", MANIFESTS)
def test_in_the_examples_the_job_has_no_key_of_the_bucket(name: str) -> None:
    spec = manifests(name)["Job"]["spec"]["template"]["spec"]
    [train] = spec["containers"]
    assert "bucket-keys" not in str(train)


def pytorch_job() -> Manifest:
    return manifests("pytorchjob-with-warm-gate.yaml")["PyTorchJob"]


# The parts of Kubeflow's custom resource that the example uses; any other field is a misspelling.
PYTORCH_JOB = {
    "type": "object",
    "additionalProperties": False,
    "required": ["pytorchReplicaSpecs"],
    "properties": {
        "nprocPerNode": {"type": "string"},
        "pytorchReplicaSpecs": {
            "type": "object",
            "additionalProperties": False,
            "required": ["Master"],
            "patternProperties": {
                "^(Master|Worker)$": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["replicas", "restartPolicy", "template"],
                    "properties": {
                        "replicas": {"type": "integer"},
                        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
                        "template": {"type": "object"},
                    },
                }
            },
        },
    },
}


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_kubernetes_knows_every_field_of_the_pods_of_a_pytorchjob(kubernetes: str) -> None:
    job = pytorch_job()
    assert job["apiVersion"] == "kubeflow.org/v1"
    jsonschema.validate(job["spec"], PYTORCH_JOB)
    for replicas in job["spec"]["pytorchReplicaSpecs"].values():
        template = replicas["template"]
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", **template["metadata"]}}
        kubernetes_validate.validate(made | {"spec": template["spec"]}, kubernetes, strict=True)
        [train] = template["spec"]["containers"]
        assert train["name"] == "pytorch"
        assert train["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("name", ["pytorchjob-with-warm-gate.yaml", "kueue-with-warm-gate.yaml"])
def test_a_gated_job_says_what_it_reads(name: str) -> None:
    [job] = [each for kind, each in manifests(name).items() if kind in ("Job", "PyTorchJob")]
    parts = job["spec"].get("pytorchReplicaSpecs", {"all": job["spec"]})
    wishes = [
        wishes_of(each["template"]["metadata"]["labels"], each["template"]["metadata"]["annotations"])
        for each in parts.values()
    ]
    [of_all] = set(wishes)
    assert (of_all.is_near, of_all.warm, of_all.inject) == (True, 0.95, None)
    for each in parts.values():
        [train] = each["template"]["spec"]["containers"]
        assert f"--shards={of_all.data[0]}shard-" in "\n".join(train["command"])


def test_the_operator_puts_a_cache_into_the_pods_that_ask_for_one() -> None:
    template = manifests("job-with-injected-sidecar.yaml")["Job"]["spec"]["template"]
    wishes = wishes_of(template["metadata"]["labels"], template["metadata"].get("annotations", {}))
    assert wishes.inject is Inject.SIDECAR
    # Without the operator the pod reads from the bucket, by the role of its account.
    [train] = template["spec"]["containers"]
    assert not [each for each in train["env"] if each["name"] != "AWS_REGION"]
    account = manifests("job-with-injected-sidecar.yaml")["ServiceAccount"]["metadata"]
    assert template["spec"]["serviceAccountName"] == account["name"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_job_is_let_into_a_restricted_namespace(name: str) -> None:
    """But for the container that mounts. Source: Pod Security Standards, profile Restricted."""
    spec = manifests(name)["Job"]["spec"]["template"]["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        if container["name"] == "mount":
            assert container["securityContext"] == {"privileged": True, "runAsUser": 0}
            continue
        security = container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert all(volume.keys() & {"configMap", "emptyDir"} for volume in spec.get("volumes", ()))


def test_the_sidecars_settings_are_settings(tmp_path: Path) -> None:
    [text] = manifests("job-with-sidecar.yaml")["ConfigMap"]["data"].values()
    (tmp_path / "settings.toml").write_text(text)
    settings = load({}, tmp_path / "settings.toml", {})
    assert (settings.auth, settings.freshness, settings.region) == ("loopback", "immutable", "eu-central-1")


VALUES = yaml.safe_load((EXAMPLES / "kubernetes/pytorch-with-daemonset-values.yaml").read_text())


def test_the_pytorch_job_finds_the_cache_that_the_values_make(tmp_path: Path) -> None:
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(VALUES, name="outrider", namespace=NAMESPACE)
    made = {
        document["kind"]: document
        for name, text in texts.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    }
    assert helm.lint(CHART, VALUES, strict=True)["errors"] == []
    job = manifests("pytorch-with-daemonset.yaml")["Job"]
    spec = job["spec"]["template"]["spec"]
    [train] = spec["containers"]
    env = {entry["name"]: entry for entry in train["env"]}
    service = made["Service"]
    [port] = service["spec"]["ports"]
    assert env["AWS_ENDPOINT_URL"]["value"] == f"http://{service['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
    caches = made["DaemonSet"]["spec"]["template"]["spec"]
    assert (spec["nodeSelector"], spec["tolerations"]) == (caches["nodeSelector"], caches["tolerations"])
    # The warm-up signs with the job's own key, and fetches the objects that the job reads.
    key = {env[name]["valueFrom"]["secretKeyRef"]["name"] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    assert key == {VALUES["warm"]["keySecret"]}
    [warm] = VALUES["warm"]["jobs"]
    assert "nodes" not in warm
    assert caches["automountServiceAccountToken"], "with peers one pod warms all nodes"
    assert f"--shards={warm['url']}" in "\n".join(train["command"])
    (tmp_path / "settings.toml").write_text(made["ConfigMap"]["data"]["settings.toml"])
    assert 'freshness = "immutable"' in made["ConfigMap"]["data"]["settings.toml"]


def test_the_comment_makes_the_caches_directory_for_the_proxys_user() -> None:
    text = (EXAMPLES / "kubernetes/pytorch-with-daemonset-values.yaml").read_text()
    with helm.Chart.load(CHART) as chart:
        user = chart.merge_values(VALUES)["runAsUser"]
    place = VALUES["cache"]["hostPath"]
    assert f"  # mkdir -p {place} && chown {user}:{user} {place}, once on each node.\n" in text


def test_the_pods_of_the_pytorch_job_find_each_other() -> None:
    made = manifests("pytorch-with-daemonset.yaml")
    job, service = made["Job"], made["Service"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    spec = job["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"]
    [train] = spec["containers"]
    first = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--master-addr={first}" in train["command"]
    assert f"--master-port={service['spec']['ports'][0]['port']}" in train["command"]


@pytest.mark.skipif(find_spec("torch") is None, reason="no torch: `make install-all` brings it for Python 3.11")
def test_torchrun_accepts_the_command_of_the_pytorch_job() -> None:
    from torch.distributed.run import parse_args

    job = manifests("pytorch-with-daemonset.yaml")["Job"]
    [train] = job["spec"]["template"]["spec"]["containers"]
    program, *words = [word.replace("$(NODE_RANK)", "3") for word in train["command"]]
    assert program == "torchrun"
    parsed = parse_args(words)
    assert (parsed.node_rank, parsed.nnodes, parsed.nproc_per_node) == (3, "4", "8")
    assert parsed.training_script == "train_webdataset.py"


def test_the_list_of_examples_is_complete() -> None:
    files = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*")
        if path.suffix in (".py", ".yaml", ".json", ".sbatch") and "__pycache__" not in path.parts
    }
    text = (EXAMPLES / "README.md").read_text()
    # A row may be of two files.
    cells = re.findall(r"^\| (\[.*?) \|", text, re.MULTILINE)
    assert {link for cell in cells for link in re.findall(r"\]\((\S+?)\)", cell)} == files
    for named in re.findall(r"tests/[\w/]+\.py", text):
        assert (EXAMPLES.parent / named).is_file()
