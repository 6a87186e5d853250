"""A `sigv4` proxy with two tenants, `team` and `other`, that share a bucket, and a signer of their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.rawhttp import Answer, RawConnection
from tests.support.signed_requests import signed_head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.proxy import Keys, Proxy, ServedProxy

NAME = "tenants"
# These keys look like real ones, so that a search for them finds nothing else.
TEAM: Keys = ("AKTEAM5F0C1D9E", "s3cr3t/of+the=team/7f3a9b1c")
OTHER: Keys = ("AKOTHER2B7A44", "s3cr3t/of+the=other/c41d08e2")
NOBODY: Keys = ("AKNOBODY0E1F", "s3cr3t/of+nobody/0b5d6a77")

CLIENTS = "".join(
    f'[[client]]\nname = "{name}"\naccess_key = "{keys[0]}"\nsecret_key = "{keys[1]}"\ngrants = [{grants}]\n\n'
    for name, keys, grants in (
        ("team", TEAM, f'{{bucket = "{NAME}", prefix = "team/", access = "write"}}'),
        ("other", OTHER, f'{{bucket = "{NAME}", prefix = "other/", access = "write"}}'),
        ("nobody", NOBODY, ""),
    )
)


def wire(
    proxy: Proxy | ServedProxy, keys: Keys, method: str, target: str, headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"", *, payload: str | None = None, unsigned: Iterable[tuple[str, str]] = (),
) -> bytes:  # fmt: skip
    """A signed request in bytes; `unsigned` headers come after the signature, `payload` is x-amz-content-sha256."""
    head = signed_head(method, proxy.endpoint, target, keys, headers, payload or ("UNSIGNED-PAYLOAD" if body else None))
    lines = [f"{name}: {value}\r\n" for name, value in [*head, *unsigned]]
    if body:
        lines.append(f"content-length: {len(body)}\r\n")
    return f"{method} {target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


def answer_to(proxy: Proxy | ServedProxy, data: bytes) -> Answer:
    """Send these bytes on a connection of their own; returns the answer."""
    with RawConnection(proxy.address) as connection:
        connection.send(data)
        return connection.read_answer(data.partition(b" ")[0].decode())
