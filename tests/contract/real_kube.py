"""A real API server: `kube-apiserver` and `etcd` of PATH, with the rights that the chart gives to the operator.

There is no kubelet, no scheduler and no controller. No pod runs, and the Service of the webhook leads nowhere.
"""

from __future__ import annotations

import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import helm_python as helm
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from kmock import resource

from tests.support.chart import CHART
from tests.support.child import Child, clean_environment, free_ports
from tests.support.fake_kube import NAME, NAMESPACE, WEBHOOKS
from tests.support.tls import certify

PROGRAMS = ("kube-apiserver", "etcd")
needs_kube_apiserver = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason="no kube-apiserver and etcd in PATH"
)
NAMESPACES = resource("v1/namespaces")
_RBAC = "rbac.authorization.k8s.io/v1"
_KINDS = {
    "ServiceAccount": resource("v1/serviceaccounts"),
    "ClusterRole": resource(f"{_RBAC}/clusterroles"),
    "ClusterRoleBinding": resource(f"{_RBAC}/clusterrolebindings"),
    "Role": resource(f"{_RBAC}/roles"),
    "RoleBinding": resource(f"{_RBAC}/rolebindings"),
    "MutatingWebhookConfiguration": WEBHOOKS,
}
_READY_S = 120.0
_ADMIN, _OPERATOR = "of-the-admin", "of-the-operator"
# A user, its id and its groups, by token.
_TOKENS = f"""{_ADMIN},admin,1,"system:masters"
{_OPERATOR},system:serviceaccount:{NAMESPACE}:{NAME},2,"system:serviceaccounts"
"""


class RealKube:
    """As an administrator. `account`: the directory of the operator's service account."""

    def __init__(self, url: str, authority: Path, account: Path) -> None:
        self.account = account
        self._url = url
        self._context = ssl.create_default_context(cafile=str(authority))

    def is_ready(self) -> bool:
        try:
            self.ask("GET", "/readyz")
        except OSError:
            return False
        return True

    def place(self, kind: resource, manifest: dict[str, Any]) -> None:
        self.ask("POST", _path(kind, manifest["metadata"].get("namespace")), manifest)

    def found(self, kind: resource, namespace: str | None, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask("GET", f"{_path(kind, namespace)}/{name}"))
        return found

    def all_of(self, kind: resource) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ask("GET", _path(kind, None)))["items"]
        return found

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """Raises OSError: there is no answer, or it is a refusal."""
        headers = {"authorization": f"Bearer {_ADMIN}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self._url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=30, context=self._context) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{method} {path}: {error.code} {error.read().decode(errors='replace')}") from None
        return found


@contextmanager
def real_kube(folder: Path) -> Iterator[tuple[RealKube, dict[str, str]]]:
    """The server, and the variables by which its pods find it. It has the namespaces of the operator and of its jobs,
    and the roles and the webhook of the chart."""
    etcd_port, peer_port, port = free_ports(3)
    certificate = certify(folder)
    signing = rsa.generate_private_key(65537, 2048)
    files = {
        "tokens.csv": _TOKENS.encode(),
        "signing.key": signing.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
        "signing.pub": signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    account = folder / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_bytes(certificate.authority.read_bytes())
    (account / "namespace").write_text(NAMESPACE)
    (account / "token").write_text(_OPERATOR)
    at_etcd, at_peers = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    etcd = [
        "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={at_etcd}",
        f"--advertise-client-urls={at_etcd}", f"--listen-peer-urls={at_peers}",
        f"--initial-advertise-peer-urls={at_peers}", f"--initial-cluster=default={at_peers}",
    ]  # fmt: skip
    server = [
        "kube-apiserver", f"--etcd-servers={at_etcd}", f"--secure-port={port}", "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1", f"--cert-dir={folder / 'certs'}", f"--tls-cert-file={certificate.chain}",
        f"--tls-private-key-file={certificate.key}", f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder / 'signing.pub'}",
        f"--service-account-signing-key-file={folder / 'signing.key'}",
        # No controller makes the service accounts that it asks for.
        "--disable-admission-plugins=ServiceAccount",
    ]  # fmt: skip
    kube = RealKube(f"https://127.0.0.1:{port}", certificate.authority, account)
    children: list[Child] = []
    try:
        children.append(Child(etcd, log=folder / "etcd.log", env=clean_environment()))
        children.append(Child(server, log=folder / "kube-apiserver.log", env=clean_environment()))
        children[1].wait_until(kube.is_ready, what="the API server", deadline_s=_READY_S)
        for namespace in (NAMESPACE, "team"):
            kube.place(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for manifest in _of_the_chart():
            kube.place(_KINDS[manifest["kind"]], manifest)
        yield kube, {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    finally:
        for child in reversed(children):
            child.stop()


def _of_the_chart() -> list[dict[str, Any]]:
    values = {"operator": {"enabled": True}, "warm": {"keySecret": "warm-key"}}
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name="outrider", namespace=NAMESPACE)
    files = ("rbac", "webhook")
    return [each for name in files for each in yaml.safe_load_all(texts[f"outrider/templates/operator/{name}.yaml"])]


def _path(kind: resource, namespace: str | None) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    return f"{root}/{kind.plural}" if namespace is None else f"{root}/namespaces/{namespace}/{kind.plural}"
