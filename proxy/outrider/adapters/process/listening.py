"""Binds the sockets of the ports."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
        host, found = "0.0.0.0", new(socket.AF_INET)  # noqa: S104 - the user chose all addresses
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


def bind_packets(directory: Path, name: str) -> socket.socket:
    """A listening socket of packets (SOCK_SEQPACKET) for processes of this user and root, in place of what is at `name`
    in the directory.

    Raises:
        OSError: the file system has no sockets, or the directory cannot be written.
    """
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # An address of this family has 108 bytes, which a directory may fill by itself.
            path = Path(f"/proc/self/fd/{place}/{name}")
            path.unlink(missing_ok=True)
            found.bind(str(path))
            path.chmod(0o600)
        finally:
            os.close(place)
        found.listen()
    except OSError:
        found.close()
        raise
    return found


@contextmanager
def naming(flag: str, address: str) -> Iterator[None]:
    """An OSError of binding at `address` is raised anew, in words that name the flag that sets it."""
    try:
        yield
    except OSError as error:
        # Event loops put numbers and addresses into the text.
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OSError(f"{flag} {address}: {why}. {remedy(flag, error.errno)}") from error


def remedy(flag: str, code: int | None) -> str:
    """The remedy for an address that cannot be bound. `code`: the error number."""
    if code == errno.EADDRINUSE:
        return f"Something else listens there: stop it, or choose another address with {flag}."
    if code in (errno.EACCES, errno.EPERM):
        return f"Ports below 1024 need root: choose another one with {flag}."
    return f"Choose an address of this machine with {flag}."
