"""The name and the address that this member gives the others."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import ip_address

from outrider.settings import Settings, SettingsError
from outrider.settings.members import SlurmPeers, is_everywhere, is_member_name

# Addresses for documentation (RFC 5737, RFC 3849): nothing is sent there, the kernel only chooses a way.
_PROBED = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def own_name(settings: Settings, environ: Mapping[str, str], host: str) -> str:
    """The setting, else the node's name where Kubernetes or Slurm give it, else the name of the `host`.

    Raises:
        SettingsError: the host's name is none that a member may have.
    """
    of_node = environ.get("NODE_NAME", "")
    if isinstance(settings.peer_source, SlurmPeers):
        of_node = environ.get("SLURMD_NODENAME", "")
    name = settings.peer_name or of_node or host
    if not is_member_name(name):
        raise SettingsError(f"--peer-name is needed: {name!r} cannot be the name of a member.")
    return name


def own_address(
    settings: Settings, port: int, environ: Mapping[str, str], *,
    probed: Mapping[socket.AddressFamily, str] = _PROBED,
) -> str:  # fmt: skip
    """`HOST:PORT` at which the others reach this member. `port`: where its peer port listens. `probed`: addresses to
    which the kernel chooses a way.

    Raises:
        SettingsError: it listens on all addresses, and none of them can be found.
    """
    listen = settings.peer_listen_at
    assert listen is not None
    if settings.peer_address is not None:
        return settings.peer_address
    host = listen.rpartition(":")[0]
    if not is_everywhere(host):
        return f"{host}:{port}"
    if isinstance(settings.peer_source, SlurmPeers) and environ.get("SLURMD_NODENAME"):
        # As the others find it in the list of the job.
        return f"{environ['SLURMD_NODENAME']}:{port}"
    # On `::` it takes connections of both families.
    families = (socket.AF_INET6, socket.AF_INET) if ":" in host else (socket.AF_INET,)
    ways = (_address_towards(probed[family], family) for family in families if family in probed)
    found = environ.get("POD_IP") or next(filter(None, ways), None)
    if found is None:
        raise SettingsError(
            f"--peer-address HOST:PORT is needed: --peer-listen {listen} is on all addresses, and this machine has "
            "none that leads elsewhere."
        )
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def _address_towards(probed: str, family: socket.AddressFamily) -> str | None:
    """The address from which this machine would send there; None: it has no way to other machines."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((probed, 9))
            found = str(probe.getsockname()[0])
    except OSError:
        return None
    return None if ip_address(found).is_loopback else found
