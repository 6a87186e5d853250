"""A stand-in for a Kubernetes cluster: `kubectl` and `helm` record the objects that they would apply, and `check` them.

The real kubectl makes its objects (`--dry-run=client`), Helm's own engine renders a chart. The cluster is a directory:
`objects.yaml`, and the values of each release. Nothing runs in it. `check`: the objects are complete, and would start.
"""

from __future__ import annotations

import argparse
import base64
import json
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import helm_python
import kubernetes_validate  # type: ignore[import-untyped]
import yaml

from outrider.settings import Settings
from tests.support import chart

Manifest = dict[str, Any]
Values = dict[str, Any]
_ANY_VERSION = "v1.29.0"
_HOOK = "helm.sh/hook"
# As `chart.LOADER`.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_ROOT = Path(__file__).parents[2]


class Refused(Exception):
    """A cluster, kubectl or Helm would refuse this."""


class Cluster:
    """The objects in a directory. The namespace `default` exists from the start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "objects.yaml"
        self.objects: list[Manifest] = (
            list(yaml.load_all(self._file.read_text(), chart.LOADER)) if self._file.exists() else []
        )

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [each for each in self.objects if each["kind"] in kinds]

    def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """`kind` in any case, as kubectl takes it."""
        wanted = (kind.lower(), namespace, name)
        return next((each for each in self.objects if _identity(each) == wanted), None)

    def secret(self, namespace: str, name: str) -> dict[str, str]:
        found = self.find("Secret", namespace, name)
        if found is None:
            raise Refused(f'secrets "{name}" not found')
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    def pods(self) -> Iterator[tuple[str, Manifest]]:
        """The namespace and the spec of each pod that something here would start."""
        for each in self.of_kind("DaemonSet", "Deployment", "Job", "CronJob", "PyTorchJob"):
            namespace, spec = each["metadata"]["namespace"], each["spec"]
            # A PyTorchJob has several templates.
            of_job = [spec["jobTemplate"]["spec"]] if each["kind"] == "CronJob" else [spec]
            for part in spec.get("pytorchReplicaSpecs", {}).values() or of_job:
                yield namespace, part["template"]["spec"]

    def add(self, found: list[Manifest], *, over: bool = False) -> None:
        """`over`: objects that exist already are replaced, as by `apply`."""
        for each in found:
            same = [old for old in self.objects if _identity(old) == _identity(each)]
            if same and not over:
                raise Refused(f"{'/'.join(_identity(each))} already exists")
            self.check_namespace(each["metadata"].get("namespace", "default"))
            self.objects = [*(old for old in self.objects if old not in same), each]
        self._file.write_text(yaml.dump_all(self.objects, Dumper=_DUMPER))

    def check_namespace(self, name: str) -> None:
        if name != "default" and self.find("Namespace", "default", name) is None:
            raise Refused(f'namespaces "{name}" not found')

    def release(self, namespace: str, name: str) -> Path:
        """The file of the release's values."""
        return self._directory / f"{namespace}-{name}.json"


def _identity(each: Manifest) -> tuple[str, str, str]:
    metadata = each["metadata"]
    return each["kind"].lower(), metadata.get("namespace", "default"), metadata["name"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def kubectl(cluster: Cluster, program: str, words: list[str], directory: Path = _ROOT) -> str:
    """`program` is the path of the real kubectl. Paths in `words` are below `directory`."""
    parser = _Parser(prog="kubectl", allow_abbrev=False)
    parser.add_argument("verb", choices=("create", "apply", "rollout", "label", "describe", "exec"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-f", "--filename", type=Path)
    chosen, _ = parser.parse_known_intermixed_args(words)
    if chosen.verb == "create":
        command = [program, *words, "--dry-run=client", "--output=yaml"]
        made = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        if made.returncode:
            raise Refused(made.stderr)
        cluster.add([yaml.safe_load(made.stdout)])
    elif chosen.verb == "apply":
        cluster.add(list(yaml.safe_load_all((directory / chosen.filename).read_text())), over=True)
    else:
        # `daemonset/outrider`, or `daemonset outrider`; `rollout` has a verb of its own before it.
        names = chosen.words[1:] if chosen.verb == "rollout" else chosen.words
        kind, _, name = names[0].partition("/")
        name = name or names[1]
        namespace = "default" if kind == "namespace" else chosen.namespace
        known = chosen.verb != "rollout" or chosen.words[0] in ("status", "restart")
        if not known or cluster.find(kind, namespace, name) is None:
            raise Refused(f'{shlex.join(words)}: {kind} "{name}" not found in {namespace}')
    return "done\n"


def helm(cluster: Cluster, _: str, words: list[str], directory: Path = _ROOT) -> str:
    parser = _Parser(prog="helm", allow_abbrev=False)
    parser.add_argument("verb", choices=("install", "upgrade", "template", "test"))
    parser.add_argument("release")
    parser.add_argument("chart", type=Path, nargs="?")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-f", "--values", type=Path, action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    # The values given before, over the defaults of the chart as it is now.
    parser.add_argument("--reset-then-reuse-values", action="store_true")
    parser.add_argument("--logs", action="store_true")
    chosen = parser.parse_intermixed_args(words)
    helm_python.validate_release_name(chosen.release)
    file = cluster.release(chosen.namespace, chosen.release)
    if chosen.verb != "template" and file.exists() != (chosen.verb in ("upgrade", "test")):
        raise Refused(
            f"{chosen.verb} {chosen.release}: {'it is there already' if file.exists() else 'no such release'}"
        )
    if chosen.verb == "test":
        return "done\n"
    if chosen.chart is None:
        raise Refused(f"{chosen.verb} {chosen.release}: of which chart?")
    values: Values = json.loads(file.read_text()) if chosen.verb == "upgrade" and chosen.reset_then_reuse_values else {}
    for each in chosen.values:
        values = _merged(values, helm_python.values_from_yaml((directory / each).read_text()))
    for each in chosen.set:
        values = _merged(values, helm_python.parse_set_string(each))
    place = directory / chosen.chart
    report = helm_python.lint(place, values, strict=True, kube_version=_ANY_VERSION)
    if report["errors"]:
        raise Refused(f"helm lint: {report['errors']}")
    with helm_python.Chart.load(place) as loaded:
        texts = loaded.render(values, name=chosen.release, namespace=chosen.namespace)
    made = [text for name, text in sorted(texts.items()) if name.endswith(".yaml")]
    if chosen.verb == "template":
        return "---\n".join(made)
    # Helm itself creates no namespace without --create-namespace.
    cluster.check_namespace(chosen.namespace)
    documents = [each for text in made for each in yaml.load_all(text, chart.LOADER) if each is not None]
    documents = [each for each in documents if _HOOK not in each["metadata"].get("annotations", {})]
    cluster.add(documents, over=chosen.verb == "upgrade")
    file.write_text(json.dumps(values))
    return next(text for name, text in texts.items() if name.endswith("/NOTES.txt"))


def _merged(under: Values, over: Values) -> Values:
    both = {key: _merged(under[key], over[key]) for key in under.keys() & over.keys()
            if isinstance(under[key], dict) and isinstance(over[key], dict)}  # fmt: skip
    return under | over | both


# Sends its directory and its words, and prints the answer.
_COMMAND = """#!/bin/bash
exec 3<> /dev/tcp/127.0.0.1/{port}
printf '=%s\\0' {name} "$PWD" "$@" >&3
printf '\\0' >&3
read -r status <&3
if [ "$status" = 0 ]; then cat <&3; else cat <&3 >&2; fi
exit "$status"
"""
_CARRIED_OUT: dict[str, tuple[str, Callable[[Cluster, str, list[str], Path], str]]] = {
    "helm": ("helm", helm), "kubectl": (shutil.which("kubectl") or "", kubectl),
}  # fmt: skip


@contextmanager
def serving(cluster: Cluster, commands: Path) -> Iterator[None]:
    """Write `helm`, and `kubectl` where a real one exists, into `commands`. A thread carries them out meanwhile: to
    import Helm's engine takes a process a second, and a fork of one that has it would lack its threads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name, (program, _) in _CARRIED_OUT.items():
            if program:
                (commands / name).write_text(_COMMAND.format(port=listener.getsockname()[1], name=name))
                (commands / name).chmod(0o755)
        thread = threading.Thread(target=_serve, args=(cluster, listener), daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(cluster: Cluster, listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, suppress(ConnectionError):
                connection.sendall(_answer(cluster, connection).encode())


def _answer(cluster: Cluster, connection: socket.socket) -> str:
    """The status in a line, and the text behind it."""
    sent = b""
    while not sent.endswith(b"\0\0") and (more := connection.recv(65536)):
        sent += more
    name, directory, *words = (word[1:].decode() for word in sent.split(b"\0")[:-2])
    program, carry_out = _CARRIED_OUT[name]
    try:
        return f"0\n{carry_out(cluster, program, words, Path(directory))}"
    except Exception as error:  # noqa: BLE001 - whatever it is, the command fails, and says why
        return f"1\n{name} {shlex.join(words)}: {error!r}\n"


Reference = tuple[str, str, str]
"""Namespace, name and key of a Secret."""
_KEY = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def is_of_kubernetes(manifest: Manifest) -> bool:
    """Not a custom resource, of which its schemas know nothing."""
    group = manifest["apiVersion"].rpartition("/")[0]
    return "." not in group or (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))


def check(cluster: Cluster, root: Path) -> None:
    """Raises AssertionError, or Refused: a Secret is missing."""
    for each in filter(is_of_kubernetes, cluster.objects):
        kubernetes_validate.validate(each, chart.KUBERNETES[-1], strict=True)
    wanted = {found for namespace, pod in cluster.pods() for found in _references(namespace, pod)}
    made = {
        (each["metadata"]["namespace"], each["metadata"]["name"], key)
        for each in cluster.of_kind("Secret")
        for key in each["data"]
    }
    assert wanted == made, f"Secrets: referenced and missing {wanted - made}; created and unused {made - wanted}"
    proxies = []
    for number, (namespace, pod) in enumerate(cluster.pods()):
        for container in _containers(pod):
            # Without a registry the image would be looked for among Docker Hub's own.
            assert "/" in container["image"], container["image"]
            if container["name"] == "outrider":
                proxies.append(_start(cluster, namespace, pod, container, root / str(number)))
    assert proxies, "no proxy is started"
    clients = {
        (client.access_key, secret.get_secret_value()) for each in proxies for client, secret in each.known_clients
    }
    if clients:
        signing = {found for namespace, pod in cluster.pods() for found in _signing_keys(cluster, namespace, pod)}
        assert signing <= clients, "a pod signs with a key that the clients file does not have"


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _references(namespace: str, pod: Manifest) -> Iterator[Reference]:
    for container in _containers(pod):
        for entry in container.get("env", ()):
            source = entry.get("valueFrom", {}).get("secretKeyRef")
            if source:
                yield namespace, source["name"], source["key"]
    for volume in pod.get("volumes", ()):
        for item in volume.get("secret", {}).get("items", ()):
            yield namespace, volume["secret"]["secretName"], item["key"]


def _start(cluster: Cluster, namespace: str, pod: Manifest, container: Manifest, root: Path) -> Settings:
    """Start with the settings, the clients file and the token that are in the cluster."""
    [name] = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    config_map = cluster.find("ConfigMap", namespace, name)
    assert config_map is not None, name
    names = {name for _, name, _ in _references(namespace, pod)}
    secrets = {name: cluster.secret(namespace, name) for name in names}
    return chart.Cluster(pod, container, config_map, secrets).start(root)


def _signing_keys(cluster: Cluster, namespace: str, pod: Manifest) -> Iterator[tuple[str, str]]:
    """The keys of the pods that send requests to the proxy."""
    for container in pod["containers"]:
        sources = {
            entry["name"]: entry["valueFrom"]["secretKeyRef"]
            for entry in container.get("env", ())
            if container["name"] != "outrider" and "secretKeyRef" in entry.get("valueFrom", {})
        }
        if sources:
            access, secret = (cluster.secret(namespace, sources[name]["name"])[sources[name]["key"]] for name in _KEY)
            yield access, secret
