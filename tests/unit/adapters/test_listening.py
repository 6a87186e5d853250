"""Sockets at `::` take the connections of both families."""

from __future__ import annotations

import errno
import socket

import pytest

from outrider.adapters.process.listening import bind


def without_ipv6(family: socket.AddressFamily) -> socket.socket:
    """A socket as a kernel without IPv6 makes it."""
    if family == socket.AF_INET6:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
    return socket.socket(family)


def is_reached(listener: socket.socket, host: str) -> bool:
    listener.listen()
    try:
        socket.create_connection((host, listener.getsockname()[1])).close()
    except OSError:
        return False
    listener.accept()[0].close()
    return True


needs_ipv6 = pytest.mark.skipif(not socket.has_ipv6, reason="Python without IPv6")


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "four", "six"), [("::", True, True), ("::1", False, True), ("0.0.0.0", True, False)]
)  # fmt: skip
def test_only_all_addresses_are_those_of_both_families(host: str, four: bool, six: bool) -> None:
    try:
        listener = bind(host, 0)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listener:
        assert (is_reached(listener, "127.0.0.1"), is_reached(listener, "::1")) == (four, six)


def test_a_kernel_without_ipv6_has_all_addresses_too() -> None:
    with bind("::", 0, new=without_ipv6) as listener:
        assert is_reached(listener, "127.0.0.1")


def test_an_address_of_ipv6_is_refused_by_a_kernel_without_it() -> None:
    with pytest.raises(OSError, match="not supported"):
        bind("::1", 0, new=without_ipv6)


def test_a_port_that_is_taken_is_refused() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with pytest.raises(OSError, match="in use"):
            bind("127.0.0.1", listener.getsockname()[1])
