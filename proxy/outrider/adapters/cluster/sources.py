"""Chooses the source of members that the settings name."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from aiohttp.resolver import ThreadedResolver

from outrider.adapters.cluster.dns_source import DnsSource
from outrider.adapters.cluster.file_source import FILE_BACKOFF, FileSource
from outrider.adapters.cluster.member_lists import Outages
from outrider.adapters.cluster.own_account import own_name
from outrider.metrics import Metrics
from outrider.ports import MemberSource
from outrider.settings import Settings, SettingsError
from outrider.settings.members import DnsPeers, FilePeers, KubernetesPeers


def source_of(
    settings: Settings, metrics: Metrics, port: int, environ: Mapping[str, str] | None = None, *,
    on_outage: Callable[[str], object] = str,
) -> MemberSource:  # fmt: skip
    """`port`: the peer port of this member, which is that of all where the source names none. `on_outage` is called
    with the reason why the source gives no list. Called on a thread that runs an event loop.

    Raises:
        SettingsError: the source cannot be used here, or its library is not installed.
    """
    environ = os.environ if environ is None else environ
    peers = settings.peer_source
    assert peers is not None
    assert settings.peers is not None
    failures = metrics.peers.source_failures
    if isinstance(peers, FilePeers):
        return FileSource(
            peers.path.expanduser(),
            Outages(settings.peers, failures, random.random, backoff=FILE_BACKOFF, on_outage=on_outage),
        )
    outages = Outages(settings.peers, failures, random.random, on_outage=on_outage)
    if isinstance(peers, DnsPeers):
        return DnsSource(peers, outages, resolver=ThreadedResolver())
    if isinstance(peers, KubernetesPeers):
        with _of_extra("kubernetes", settings.peers):
            from outrider.adapters.cluster.kubernetes_source import KubernetesSource
        name = own_name(settings, environ, socket.gethostname())
        listen = settings.peer_listen_at or ""
        return KubernetesSource(peers, outages, own_name=name, own_port=port, prefers_ipv6=listen.startswith("["))
    with _of_extra("slurm", settings.peers):
        from outrider.adapters.cluster.slurm_source import SlurmSource
    return SlurmSource(environ, port)


@contextmanager
def _of_extra(extra: str, peers: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingsError(
            f'--peers {peers} needs the extra `{extra}`, which brings {error.name}: pip install "outrider[{extra}]"'
        ) from error
