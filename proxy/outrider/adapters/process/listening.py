"""Binds the sockets of the ports."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

_EVERYWHERE = "::"


def bind(
    host: str, port: int, *, new: Callable[[socket.AddressFamily], socket.socket] = socket.socket
) -> socket.socket:
    """A socket at this address, which does not listen yet. `host`: without brackets; `new`: makes a socket of a family.

    At `::` it takes the connections of both families, and those of IPv4 alone where the kernel has no IPv6: a cluster
    may have either, and an image cannot know. Go listens in the same way.

    Raises:
        OSError: the address cannot be bound.
    """
    try:
        found = new(socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if host != _EVERYWHERE or error.errno != errno.EAFNOSUPPORT:
            raise
        host, found = "0.0.0.0", new(socket.AF_INET)  # noqa: S104 - the user asked for all addresses
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if found.family == socket.AF_INET6:
            # The system's default is a sysctl.
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != _EVERYWHERE)
        found.bind((host, port))
    except OSError:
        found.close()
        raise
    return found
