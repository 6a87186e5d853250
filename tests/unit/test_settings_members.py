"""The settings of a cluster: its sources of members, and what goes together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.settings import Settings, SettingsError, load
from outrider.settings.members import DnsPeers, FilePeers, KubernetesPeers, Peers, SlurmPeers


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings in the environment of the tests."""
    for name in list(os.environ):
        if name.upper().startswith("OUTRIDER_"):
            monkeypatch.delenv(name)


def cluster(**more: object) -> Settings:
    return load({"peers": "slurm", "peer_key_file": "/run/key", **more}, None, {})


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("kubernetes:caches/outrider-peers", KubernetesPeers("caches", "outrider-peers")),
        ("dns:peers.example.com:9482", DnsPeers("peers.example.com", 9482)),
        ("dns:_peers._tcp.svc.:1", DnsPeers("_peers._tcp.svc.", 1)),
        ("file:/etc/outrider/peers", FilePeers(Path("/etc/outrider/peers"))),
        ("file:here: and there", FilePeers(Path("here: and there"))),
        ("slurm", SlurmPeers()),
    ],
)
def test_the_sources_of_members(text: str, source: Peers) -> None:
    assert cluster(peers=text).peer_source == source


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must be kubernetes:NAMESPACE/SERVICE, dns:NAME:PORT, file:PATH or slurm"),
        ("consul:peers", "must be kubernetes:NAMESPACE/SERVICE, dns:NAME:PORT, file:PATH or slurm"),
        ("slurm:", "must be kubernetes:NAMESPACE/SERVICE, dns:NAME:PORT, file:PATH or slurm"),
        ("file:", "must be kubernetes:NAMESPACE/SERVICE, dns:NAME:PORT, file:PATH or slurm"),
        *((f"kubernetes:{text}", "must be kubernetes:NAMESPACE/SERVICE, two names") for text in (
            "", "caches", "caches/", "/peers", "caches/peers/more", "Caches/peers", "caches/a.b", f"caches/{'a' * 64}",
        )),
        *((f"dns:{text}", "must be dns:NAME:PORT, a name and the peer port") for text in (
            "", "peers", "peers:", ":9482", "peers:0", "peers:65536", "peers:http", "a..b:1", "a b:1", "-a:1",
            f"{'a' * 64}:1", f"{'a.' * 128}b:1",
        )),
    ],
)  # fmt: skip
def test_a_wrong_source_of_members_is_refused_with_the_right_form(text: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem) as refused:
        cluster(peers=text)
    assert "--peers (OUTRIDER_PEERS)" in str(refused.value)


def test_without_a_source_nothing_listens_for_members() -> None:
    settings = load({}, None, {})
    assert (settings.peer_source, settings.peer_listen_at) == (None, None)
    with pytest.raises(SettingsError, match="--peer-listen needs --peers"):
        load({"peer_listen": "0.0.0.0:9482"}, None, {})


def test_the_account_of_this_member_may_stay_when_the_cluster_is_turned_off() -> None:
    """An operator who removes `peers` in a hurry need not remove all that goes with it."""
    flags = {"peer_zone": "b", "peer_name": "n", "peer_address": "h:1", "peer_domain": "cluster", "peer_key_file": "/k"}
    assert load(flags, None, {}).peer_source is None


def test_members_are_listened_for_on_all_addresses_by_default() -> None:
    assert cluster().peer_listen_at == "0.0.0.0:9482"
    assert cluster(peer_listen="127.0.0.2:0").peer_listen_at == "127.0.0.2:0"


def test_members_need_the_key_of_the_cluster() -> None:
    with pytest.raises(SettingsError, match="--peers needs --peer-key-file FILE"):
        load({"peers": "slurm"}, None, {})


@pytest.mark.parametrize("given", [("cert",), ("key",), ("ca",), ("cert", "key"), ("cert", "ca"), ("key", "ca")])
def test_certificate_key_and_authority_of_members_go_together(given: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="--peer-tls-cert, --peer-tls-key and --peer-tls-ca go together"):
        cluster(**{f"peer_tls_{name}": "/x" for name in given})
    assert cluster(peer_tls_cert="/x", peer_tls_key="/x", peer_tls_ca="/x").peer_tls_ca == Path("/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("peer_address", value) for value in ("", "host", "0.0.0.0:9482", "[::]:9482", "host:0", "::1:9482")),
        *(("peer_name", value) for value in ("", "a b", "a;b", "a,b", ".a", "a-", "é", "a\n", "a" * 254)),
        ("peer_zone", "a=b"), ("peer_domain", "rack"), ("peer_listen", "9482"), ("peer_key_file", ""),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        cluster(**{name: value})
    assert f"--{name.replace('_', '-')} (OUTRIDER_{name.upper()})" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peer_address", "10.0.0.7:9482"), ("peer_address", "node-7:9482"), ("peer_address", "[fd00::7]:9482"),
        ("peer_name", "ip-10-0-0-7.eu-west-1.compute.internal"), ("peer_name", "7"), ("peer_zone", "eu-west-1b"),
        ("peer_domain", "cluster"),
    ],
)  # fmt: skip
def test_addresses_names_and_zones_as_machines_have_them(name: str, value: str) -> None:
    assert getattr(cluster(**{name: value}), name) == value
