"""The Helm chart, rendered by Helm's own engine with the value files of charts/outrider/ci.

`python -m tests.support.chart default` prints it with its default values, as `helm template` does (`make chart`);
`... readme` makes the table of values in charts/outrider/README.md from values.yaml and its comments.
"""

from __future__ import annotations

import functools
import json
import pickle
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import helm_python as helm
import kubernetes_validate  # type: ignore[import-untyped]
import yaml

from outrider.settings import Settings, load

CHART = Path(__file__).parents[2] / "charts" / "outrider"
# In C, where the library has it: several times as fast.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RELEASE, NAMESPACE = "fast", "training"
HOOK = "helm.sh/hook"
Values = dict[str, Any]
Manifest = dict[str, Any]

# The schemas of a version are some MB. Otherwise they are read again for each manifest, which takes ten times as long.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)

# The oldest Kubernetes version that Chart.yaml promises, and the newest that the schemas know.
KUBERNETES = ("1.29", kubernetes_validate.latest_version())
BETWEEN = tuple(f"1.{minor}" for minor in range(30, int(KUBERNETES[-1].split(".")[1])))

CASES: dict[str, Values] = {
    path.name.removesuffix("-values.yaml"): yaml.safe_load(path.read_text())
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
NODE_CASES = {name: values for name, values in CASES.items() if values.get("mode") != "sidecar"}
"""The value files of the DaemonSet."""


MONITORING = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")


@contextmanager
def in_cluster(
    directory: Path, *, kubernetes: str = "1.36", kinds: Collection[str] = MONITORING,
    objects: Mapping[str, Manifest] | None = None,
) -> Iterator[helm.Chart]:  # fmt: skip
    """The chart as Helm renders it for a cluster: of that version, that knows `kinds` beside Kubernetes' own, and has
    `objects` by `version/Kind/namespace/name`. `directory`: a new one, for the chart's copy.

    All that the chart asks of a cluster is in one file, which is replaced. Rendered by itself it asks none.
    """
    shutil.copytree(CHART, directory)
    major, minor, *_ = kubernetes.split(".")
    known = " ".join(json.dumps(kind) for kind in kinds)
    (directory / "templates/_cluster.tpl").write_text(f"""
{{{{- define "outrider.kubeVersion" -}}}}v{major}.{minor}.4-gke.1043002{{{{- end -}}}}
{{{{- define "outrider.knowsKind" -}}}}{{{{- has .kind (list {known}) -}}}}{{{{- end -}}}}
{{{{- define "outrider.found" -}}}}
{{{{- $there := fromJson `{json.dumps(objects or {})}` -}}}}
{{{{- get $there (list .version .kind .namespace .name | join "/") | default dict | toJson -}}}}
{{{{- end -}}}}
""")
    with helm.Chart.load(directory) as chart:
        yield chart


def documents(chart: helm.Chart, values: Values, release: str = RELEASE) -> list[Manifest]:
    """The manifests that Helm would apply. Hooks, such as the pod of `helm test`, are none."""
    rendered = everything(chart, values, release)
    return [document for document in rendered if HOOK not in document["metadata"].get("annotations", {})]


def everything(chart: helm.Chart, values: Values, release: str = RELEASE) -> list[Manifest]:
    """The manifests, and the hooks."""
    memo_key = f"{release} {json.dumps(values)}"
    of_chart = _RENDERED.setdefault(chart, {})
    if memo_key not in of_chart:
        of_chart[memo_key] = pickle.dumps(_rendered(chart, values, release))
    # The caller may change it.
    found: list[Manifest] = pickle.loads(of_chart[memo_key])
    return found


# Many tests look at the same manifests. The one Secret that is made at random differs from cluster to cluster alone.
_RENDERED: WeakKeyDictionary[helm.Chart, dict[str, bytes]] = WeakKeyDictionary()


def _rendered(chart: helm.Chart, values: Values, release: str) -> list[Manifest]:
    texts = chart.render(values, name=release, namespace=NAMESPACE)
    return [
        document
        for name, text in sorted(texts.items())
        if name.endswith(".yaml")
        for document in yaml.load_all(text, LOADER)
        if document is not None
    ]


def manifests(chart: helm.Chart, values: Values, release: str = RELEASE) -> dict[str, Manifest]:
    """The manifests by kind. The chart renders one of each kind; warm-ups, the dashboard and those of peers and of the
    operator, which repeat kinds, are left out."""
    rendered = [
        document
        for document in documents(chart, values, release)
        if document["kind"] not in ("Job", "CronJob")
        and not document["metadata"]["name"].endswith(("-dashboard", "-peers", "-operator", "-nodes"))
    ]
    by_kind = {document["kind"]: document for document in rendered}
    assert len(by_kind) == len(rendered)
    return by_kind


def of_peers(chart: helm.Chart, values: Values, release: str = RELEASE) -> dict[str, Manifest]:
    """The manifests by kind that the chart renders for peers alone."""
    found = documents(chart, values, release)
    return {each["kind"]: each for each in found if each["metadata"]["name"].endswith("-peers")}


def of_operator(chart: helm.Chart, values: Values, release: str = RELEASE) -> dict[str, Manifest]:
    """The manifests by kind that the chart renders for the operator alone."""
    found = documents(chart, values, release)
    return {each["kind"]: each for each in found if each["metadata"]["name"].endswith("-operator")}


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


# The downward API of the one pod.
_FIELDS = {"spec.nodeName": "gpu-7", "status.podIP": "10.1.0.7"}
CLIENT = '[[client]]\naccess_key = "AKTRAIN"\nsecret_key = "hush"\ngrants = [{bucket = "train-*"}]\n'


def secrets_for(values: Values, name: str = f"{RELEASE}-outrider") -> dict[str, dict[str, str]]:
    """Those that NOTES.txt asks for, and the one that the chart makes. `name`: that of the DaemonSet."""
    clients = {"name": "outrider-clients", "key": "clients.toml", **values.get("clientsSecret", {})}
    admin = {"name": "outrider-admin", "key": "token", **values.get("adminTokenSecret", {})}
    peers = {"name": f"{name}-peers", "key": "key", **values.get("peers", {}).get("keySecret", {})}
    return {
        peers["name"]: {peers["key"]: "k" * 64},
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
        daemon_set = rendered["DaemonSet"]
        spec, name = daemon_set["spec"]["template"]["spec"], daemon_set["metadata"]["name"]
        return cls(spec, spec["containers"][0], rendered["ConfigMap"], secrets_for(values, name))

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
            origin = entry.get("valueFrom", {})
            if "fieldRef" in origin:
                found[entry["name"]] = _FIELDS[origin["fieldRef"]["fieldPath"]]
                continue
            source = origin.get("secretKeyRef")
            found[entry["name"]] = self.secrets[source["name"]][source["key"]] if source else entry["value"]
        # The kubelet sets these variables for a Service named `outrider`, unless the pod forbids it.
        links = {"OUTRIDER_SERVICE_HOST": "10.0.0.7", "OUTRIDER_SERVICE_PORT": "9480"}
        links["OUTRIDER_PORT"] = "tcp://10.0.0.7:9480"
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


README = CHART / "README.md"
_TABLE = re.compile(r"(?<=<!-- values: made by `make chart-readme` -->\n).*?(?=<!-- /values -->)", re.DOTALL)
_KEY = re.compile(r"( *)([A-Za-z0-9_]+):(.*)")


def described() -> dict[str, str]:
    """The comment above each key of values.yaml, by its dotted path; empty where there is none."""
    found: dict[str, str] = {}
    path: list[str] = []
    comment: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        key = _KEY.fullmatch(line)
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
        elif key:
            path = [*path[: len(key[1]) // 2], key[2]]
            found[".".join(path)] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def rows() -> list[tuple[str, str, str]]:
    """Path, default as JSON, description: of each value that has a description."""
    values, comments = yaml.safe_load((CHART / "values.yaml").read_text()), described()
    found = []
    for path, words in comments.items():
        has_rows = any(other.startswith(f"{path}.") and comments[other] for other in comments)
        if words:
            found.append((path, "" if has_rows else f"`{json.dumps(_at(values, path))}`", words))
    return found


def block(heading: str) -> str:
    """The YAML that follows a line with `heading` in it."""
    [found] = re.findall(rf"`{re.escape(heading)}`:\n\n```yaml.*\n((?:.*\n)*?)```\n", README.read_text())
    return str(found)


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def table() -> str:
    lines = ["| value | default | what it is |", "| --- | --- | --- |"]
    lines += [f"| `{path}` | {default} | {words} |" for path, default, words in rows()]
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    made, count = _TABLE.subn(lambda _: table(), text)
    assert count == 1, "README.md has no place for the table"
    return made


def rendered(release: str = "outrider", namespace: str = "default") -> str:
    """All manifests, each preceded by the name of its template."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render({}, name=release, namespace=namespace)
    return "".join(
        f"---\n# Source: {name}\n{text.strip()}\n"
        for name, text in texts.items()
        if name.endswith(".yaml") and text.strip()
    )


if __name__ == "__main__":
    if sys.argv[1] == "default":
        print(rendered(), end="")
    else:
        README.write_text(with_table(README.read_text()))
