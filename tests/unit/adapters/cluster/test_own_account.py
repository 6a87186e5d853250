"""The name and the address that a member states to the others, where no setting says them."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from outrider.adapters.cluster.own_account import own_address, own_name
from outrider.settings import Settings, SettingsError
from tests.support.member_sources import settings_of

SLURM = {"SLURMD_NODENAME": "n7"}


@pytest.mark.parametrize(
    ("settings", "environ", "name"),
    [
        (settings_of(peers="file:/p"), {}, "host.example"),
        (settings_of(peers="file:/p"), {"NODE_NAME": "node-1"}, "node-1"),
        (settings_of(peers="file:/p"), {"NODE_NAME": ""}, "host.example"),
        (settings_of(peers="file:/p", peer_name="mine"), {"NODE_NAME": "node-1"}, "mine"),
        (settings_of(peers="slurm"), SLURM | {"NODE_NAME": "of-a-users-script"}, "n7"),
        (settings_of(peers="dns:a:1"), SLURM, "host.example"),
    ],
)
def test_the_name_is_that_of_the_node(settings: Settings, environ: dict[str, str], name: str) -> None:
    assert own_name(settings, environ, "host.example") == name


def test_a_name_that_no_member_can_have_is_refused() -> None:
    with pytest.raises(SettingsError, match="--peer-name is needed: 'my host'"):
        own_name(settings_of(peers="slurm"), {}, "my host")


@pytest.mark.parametrize(
    ("more", "environ", "address"),
    [
        ({"peer_address": "public:1"}, {"POD_IP": "10.1.1.1"}, "public:1"),
        ({"peer_listen": "127.0.0.2:0"}, {"POD_IP": "10.1.1.1"}, "127.0.0.2:9000"),
        ({"peer_listen": "[fd00::1]:0"}, {}, "[fd00::1]:9000"),
        ({}, {"POD_IP": "10.1.1.1"}, "10.1.1.1:9000"),
        ({"peer_listen": "[::]:0"}, {"POD_IP": "fd00::7"}, "[fd00::7]:9000"),
        ({"peers": "slurm"}, SLURM, "n7:9000"),
    ],
)
def test_the_address_is_where_the_others_find_it(more: dict[str, str], environ: dict[str, str], address: str) -> None:
    assert own_address(settings_of(**({"peers": "file:/p"} | more)), 9000, environ) == address


def test_on_all_addresses_it_is_the_one_that_leads_elsewhere_or_has_to_be_said() -> None:
    settings = settings_of(peers="file:/p")
    try:
        host, _, port = own_address(settings, 9000, {}).rpartition(":")
    except SettingsError:  # a machine without a network
        pass
    else:
        assert not ip_address(host).is_loopback
        assert port == "9000"
    # There is always a way to loopback, from an address that others cannot use.
    loopback = {socket.AF_INET: "127.0.0.1"}
    with pytest.raises(SettingsError, match=r"--peer-address HOST:PORT is needed: --peer-listen 0\.0\.0\.0:9482"):
        own_address(settings, 9000, {}, probed=loopback)


def test_on_all_addresses_of_both_families_it_may_be_one_of_ipv4() -> None:
    settings = settings_of(peers="file:/p", peer_listen="[::]:0")
    ways = {socket.AF_INET6: "::1", socket.AF_INET: "192.0.2.1"}
    try:
        host, _, _ = own_address(settings, 9000, {}, probed=ways).rpartition(":")
    except SettingsError:  # a machine without a network
        return
    assert ip_address(host).version == 4
