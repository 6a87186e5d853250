"""The Helm chart, rendered by Helm's own engine with the value files of charts/outrider/ci."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate  # type: ignore[import-untyped]
import yaml

from outrider.settings import Settings, load

if TYPE_CHECKING:
    import helm_python as helm

CHART = Path(__file__).parents[2] / "charts" / "outrider"
RELEASE, NAMESPACE = "fast", "training"
Values = dict[str, Any]
Manifest = dict[str, Any]

# The oldest Kubernetes version that Chart.yaml promises, and the newest that the schemas know.
KUBERNETES = ("1.29", kubernetes_validate.latest_version())

CASES: dict[str, Values] = {
    path.name.removesuffix("-values.yaml"): yaml.safe_load(path.read_text())
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
NODE_CASES = {name: values for name, values in CASES.items() if values.get("mode") != "sidecar"}
"""The value files of the DaemonSet."""


def documents(chart: helm.Chart, values: Values, release: str = RELEASE) -> list[Manifest]:
    """The manifests that Helm would apply."""
    texts = chart.render(values, name=release, namespace=NAMESPACE)
    return [
        document
        for name, text in sorted(texts.items())
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document is not None
    ]


def manifests(chart: helm.Chart, values: Values, release: str = RELEASE) -> dict[str, Manifest]:
    """The manifests by kind. The chart renders one of each kind; warm-ups and the dashboard, which repeat kinds, are
    left out."""
    rendered = [
        document
        for document in documents(chart, values, release)
        if document["kind"] not in ("Job", "CronJob") and not document["metadata"]["name"].endswith("-dashboard")
    ]
    by_kind = {document["kind"]: document for document in rendered}
    assert len(by_kind) == len(rendered)
    return by_kind


def of_kind(chart: helm.Chart, values: Values, kind: str) -> list[Manifest]:
    return [document for document in documents(chart, values) if document["kind"] == kind]


def pod(chart: helm.Chart, values: Values) -> Manifest:
    """The pod template of the DaemonSet."""
    spec: Manifest = manifests(chart, values)["DaemonSet"]["spec"]["template"]["spec"]
    return spec


def container(chart: helm.Chart, values: Values) -> Manifest:
    [only] = pod(chart, values)["containers"]
    assert isinstance(only, dict)
    return only


CLIENT = '[[client]]\naccess_key = "AKTRAIN"\nsecret_key = "hush"\ngrants = [{bucket = "train-*"}]\n'


def secrets_for(values: Values) -> dict[str, dict[str, str]]:
    clients = {"name": "outrider-clients", "key": "clients.toml", **values.get("clientsSecret", {})}
    admin = {"name": "outrider-admin", "key": "token", **values.get("adminTokenSecret", {})}
    return {
        clients["name"]: {clients["key"]: CLIENT},
        admin["name"]: {admin["key"]: "open sesame"},
        "minio-keys": {"AWS_ACCESS_KEY_ID": "AKPROXY", "AWS_SECRET_ACCESS_KEY": "hush too"},
    }


class Cluster:
    """A stand-in for the API server and the kubelet: it has the Secrets that NOTES.txt asks for, and fills volumes.

    It runs one container of one pod: the proxy's.
    """

    def __init__(
        self, pod: Manifest, container: Manifest, config_map: Manifest, secrets: dict[str, dict[str, str]]
    ) -> None:
        self.secrets = secrets
        self.config_maps = {config_map["metadata"]["name"]: config_map["data"]}
        self._pod, self._container = pod, container
        # A ConfigMap key or a Secret key becomes a file; everything else is a directory to write to.
        self._volumes = {volume["name"]: self._files_of(volume) for volume in pod["volumes"]}

    @classmethod
    def of(cls, rendered: dict[str, Manifest], values: Values) -> Cluster:
        """A cluster with a pod of the DaemonSet."""
        spec = rendered["DaemonSet"]["spec"]["template"]["spec"]
        return cls(spec, spec["containers"][0], rendered["ConfigMap"], secrets_for(values))

    def _files_of(self, volume: Manifest) -> dict[str, str]:
        if "configMap" in volume:
            files: dict[str, str] = self.config_maps[volume["configMap"]["name"]]
            return files
        if "secret" in volume:
            secret = self.secrets[volume["secret"]["secretName"]]
            return {item["path"]: secret[item["key"]] for item in volume["secret"]["items"]}
        return {}

    def environment(self) -> dict[str, str]:
        found = {}
        for entry in self._container.get("env", ()):
            source = entry.get("valueFrom", {}).get("secretKeyRef")
            found[entry["name"]] = self.secrets[source["name"]][source["key"]] if source else entry["value"]
        # The kubelet sets these variables for a Service named `outrider`, unless the pod forbids it.
        links = {"OUTRIDER_SERVICE_HOST": "10.0.0.7", "OUTRIDER_PORT": "tcp://10.0.0.7:9480"}
        return found | (links if self._pod.get("enableServiceLinks", True) else {})

    def start(self, root: Path) -> Settings:
        """The settings that the proxy reads from `args`, with `root` in place of the container's `/`."""
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
    return Cluster.of(manifests(chart, values), values).start(root)
