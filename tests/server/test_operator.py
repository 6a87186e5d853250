"""`outrider operator` as a process, before an API server and a cache: a pod is admitted, waits, and starts near its
data."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from outrider.core.operator.pod_patch import GATE
from tests.support.api_calls import API_CALLS
from tests.support.bucket import Bucket
from tests.support.child import Child
from tests.support.control_bucket import wait_until
from tests.support.fake_kube import (
    EVENTS,
    HOST,
    LEASES,
    NAME,
    NAMESPACE,
    NAMESPACES,
    PODS,
    SLICES,
    WEBHOOKS,
    KubeServer,
    configuration,
    kube_server,
)
from tests.support.fakes import ramp
from tests.support.pods import Pod, near, patched, review_of
from tests.support.proxy import Command, Proxy, serving_environment
from tests.support.tls import certify

BUCKET = "gated"


def kubeconfig(path: Path, url: str, authority: Path, token: str) -> None:
    cluster = {"server": url, "certificate-authority": str(authority)}
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }))  # fmt: skip


async def until(happened: Callable[[], Any], log: Path) -> Any:
    for _ in range(2000):
        if found := happened():
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(log.read_text())


def ports(log: Path) -> dict[str, int]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return next((line for line in lines if line["event"] == "ready"), {})


@pytest.mark.parametrize("flag", ["--listen", "--webhook-listen"])
async def test_a_port_in_use_is_reported_with_the_flag_to_change(flag: str, bucket: Bucket, tmp_path: Path) -> None:
    command = Command(bucket, tmp_path)
    kubeconfig(tmp_path / "config", "https://127.0.0.1:1", certify(tmp_path).authority, "token")
    command.environ["KUBECONFIG"] = str(tmp_path / "config")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = {"--listen": "127.0.0.1:0", "--webhook-listen": "127.0.0.1:0", flag: at}
        words = [word for each in flags.items() for word in each]
        done = await asyncio.to_thread(
            command.run, "operator", "--endpoint", "http://127.0.0.1:1", "--cache", "cache/peers", *words
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"outrider: cannot listen: {flag} {at}: Address already in use. Something else listens there: stop it, or "
        f"choose another address with {flag}.\n"
    )


async def test_a_pod_waits_until_its_data_is_known_to_be_warm(bucket: Bucket, tmp_path: Path) -> None:
    bucket.make_bucket(BUCKET)
    s3 = bucket.client()
    for number in range(3):
        s3.put_object(Bucket=BUCKET, Key=f"train/{number}.tar", Body=ramp(100_000, number))
    s3.close()
    log = tmp_path / "operator.log"
    with Proxy(bucket) as proxy:
        # Nothing comes while the pod waits: its affinity is the same each time.
        client = proxy.client()
        client.put_object(Bucket="_outrider", Key="warm/before", Body=f"s3://{BUCKET}/train/".encode())
        wait_until(
            lambda: any(
                dataset.get("verified") == dataset.get("cached") == 1.0 for dataset in proxy.status()["datasets"]
            )
        )
        client.close()
        async with kube_server(tmp_path, NAMESPACE) as (server, environ):
            server.place(WEBHOOKS, configuration())
            labels = {"kubernetes.io/service-name": "peers"}
            # Nothing listens at the second address.
            endpoints = [
                {"addresses": [address], "nodeName": f"node-{zone}", "zone": f"zone-{zone}", "conditions": {}}
                for zone, address in (("a", "127.0.0.1"), ("b", "127.0.0.2"))
            ]
            metadata = {"name": "peers-1", "namespace": NAMESPACE, "labels": labels}
            server.place(SLICES, {"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints})
            server.place(NAMESPACES, {"metadata": {"name": "team", "labels": {"team": "vision"}}})
            # It waits when the operator comes, which looks after it in its first round.
            pod = near(f"s3://{BUCKET}/train/", warm="1.0")
            gated = copy.deepcopy(pod) | {"status": {"phase": "Pending"}}
            gated["spec"]["schedulingGates"] = [{"name": GATE}]
            gated["metadata"]["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            server.place(PODS, gated)
            url = f"https://127.0.0.1:{environ['KUBERNETES_SERVICE_PORT']}"
            kubeconfig(tmp_path / "config", url, server.account / "ca.crt", server.token)
            flags = {
                "--endpoint": proxy.endpoint, "--cache": f"{NAMESPACE}/peers", "--namespace": NAMESPACE,
                "--listen": "127.0.0.1:0", "--webhook-listen": "127.0.0.1:0", "--s3-port": str(proxy.address[1]),
                "--admin-port": proxy.admin.rpartition(":")[2],
                "--namespace-selector": '{"matchLabels": {"team": "vision"}}',
            }  # fmt: skip
            argv = [sys.executable, "-m", "outrider", "operator", *(word for flag in flags.items() for word in flag)]
            env = serving_environment(bucket) | {"KUBECONFIG": str(tmp_path / "config"), "POD_NAME": "operator-1"}
            child = Child(argv, log=log, env=env, forked=True)
            try:
                at = await until(lambda: ports(log), log)
                await gated_and_opened(server, at, log, pod)
            finally:
                child.process.send_signal(signal.SIGTERM)
                status = await asyncio.to_thread(child.process.wait, 30)
                child.stop()
            assert status == 0, log.read_text()
            assert server.found(LEASES, NAMESPACE, NAME)["spec"]["holderIdentity"] == ""
            # Each right is needed, and no other. Certificates are written anew after months.
            assert set(server.calls) == {call_of(each) for each in API_CALLS} - {("update", "", "secrets")}


def call_of(listed: Any) -> tuple[str, str, str]:
    return listed.verb, listed.group, listed.resource


async def gated_and_opened(server: KubeServer, at: dict[str, int], log: Path, pod: Pod) -> None:
    def bundle() -> str:
        hooks = server.found(WEBHOOKS, None, NAME)["webhooks"]
        return base64.b64decode(hooks[0]["clientConfig"].get("caBundle", "")).decode()

    tls = ssl.create_default_context(cadata=await until(bundle, log))
    async with aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{at['webhook_port']}/mutate"
        async with session.post(url, data=review_of(pod), ssl=tls, server_hostname=HOST) as reply:
            answer = (await reply.json())["response"]
        assert answer["allowed"]
        held_back = patched(pod, json.loads(base64.b64decode(answer["patch"])))
        assert held_back["spec"]["schedulingGates"] == [{"name": GATE}]
        await until(lambda: not server.found(PODS, "team", "train-0")["spec"]["schedulingGates"], log)
        affinity = server.found(PODS, "team", "train-0")["spec"]["affinity"]["nodeAffinity"]
        [node, zone] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert node["preference"]["matchFields"][0]["values"] == ["node-a"]
        assert zone["preference"]["matchExpressions"][0]["values"] == ["zone-a"]
        [opened] = await until(lambda: [event for event in server.all_of(EVENTS) if event["reason"] == "Warm"], log)
        assert opened["message"] == "100 % of 300 kB are cached"
        # The API server has the bundle, and rounds have followed.
        async with session.get(f"http://127.0.0.1:{at['port']}/readyz") as reply:
            assert reply.status == 200
        async with session.get(f"http://127.0.0.1:{at['port']}/metrics") as reply:
            metrics = await reply.text()
    assert 'outrider_operator_openings_total{reason="Warm"} 1.0' in metrics
    assert 'outrider_operator_admissions_total{result="patched"} 1.0' in metrics
