"""Keys and certificates of a cluster that are changed while members read from each other."""

from __future__ import annotations

import random
import secrets
import socket
import ssl
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from outrider.adapters.process import file_reload
from outrider.core.cluster.member import Member
from outrider.core.cluster.ownership import Ring
from outrider.core.model import ObjectRef
from tests.support.child import free_ports
from tests.support.nodes import until
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "keys"
SIZES = (64 * 1024, 300 * 1024)
"""Whole blocks: one that a client receives on its loop, and one that a thread receives."""
TRIES = 10
FILES = ("key", "cert.pem", "key.pem", "ca.pem")


@dataclass(slots=True)
class Pair:
    """Two members in this process, each with files of its own."""

    bucket: Bucket
    directory: Path
    with_tls: bool
    members: list[Proxy] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(8))
    ring: Ring = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        ports = free_ports(2)
        # Caches of one size: the owner of a block does not depend on what it is.
        self.ring = Ring(Member(f"node-{number}", "", "", 1, "") for number in range(2))
        lines = [f"127.0.0.1:{port} name=node-{number}\n" for number, port in enumerate(ports)]
        (self.directory / "members").write_text("".join(lines))
        for number, port in enumerate(ports):
            tls: dict[str, Any] = {
                f"peer_tls_{what}": str(self.file(number, name))
                for what, name in zip(("cert", "key", "ca"), FILES[1:], strict=True)
            }
            self.file(number, "").mkdir()
            self.members.append(
                Proxy(
                    self.bucket, peers=f"file:{self.directory / 'members'}", peer_listen=f"127.0.0.1:{port}",
                    peer_name=f"node-{number}", peer_key_file=str(self.file(number, "key")),
                    **(tls if self.with_tls else {}),
                )
            )  # fmt: skip

    def file(self, member: int, name: str) -> Path:
        return self.directory / f"of-{member}" / name

    def write(self, member: int, name: str, content: bytes) -> None:
        """Renamed whole, as a tool would write it."""
        new = self.file(member, f"{name}.new")
        new.write_bytes(content)
        new.chmod(0o600)
        new.rename(self.file(member, name))

    def __enter__(self) -> Pair:
        with self._stack:
            for member in self.members:
                self._stack.enter_context(member)
            for member in self.members:
                until(lambda member=member: self._sees_the_other(member), "two members")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _sees_the_other(self, member: Proxy) -> bool:
        return [each["state"] for each in member.status()["cluster"]["members"]] == ["alive", "alive"]

    def read_both_ways(self) -> None:
        """New objects of which the other member is the owner, through both members. None is refused."""
        client = self.bucket.client()
        try:
            for reader, owner in (self.members, self.members[::-1]):
                for size in SIZES:
                    assert any(self._is_answered(client, reader, owner, size) for _ in range(TRIES))
        finally:
            client.close()
        for member in self.members:
            assert member.metric("outrider_peer_refused_total") == 0
            for why in ("refused", "garbage", "status"):
                assert member.metric("outrider_peer_failures_total", why=why) == 0

    def _is_answered(self, client: Any, reader: Proxy, owner: Proxy, size: int) -> bool:
        """Whether the owner gave `reader` a new object. On a machine that stands still, the bucket may be asked in its
        place."""
        until(lambda: self._sees_the_other(reader), "two members")
        before = self._answered(reader)
        key, data = self._key_owned_by(owner), self.rng.randbytes(size)
        client.put_object(Bucket=NAME, Key=key, Body=data)
        answer = ask(reader.address, "GET", f"/{NAME}/{key}")
        assert (answer.status, answer.body) == (200, data)
        return self._answered(reader) > before

    def _key_owned_by(self, owner: Proxy) -> str:
        name = owner.settings["peer_name"]
        return next(
            key for key in iter(lambda: secrets.token_hex(8), "")
            if self.ring.owner(ObjectRef(NAME, key), 0).name == name
        )  # fmt: skip

    @staticmethod
    def _answered(reader: Proxy) -> float:
        """Reads that the other one answered."""
        return reader.metric("outrider_peer_requests_total", result="ok")


def shaken_hands(pair: Pair, member: int, certificate: trustme.LeafCert, authority: trustme.CA) -> bytes:
    """The first byte that the peer port sends after a handshake with this certificate; none if it refuses it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    authority.configure_trust(context)
    certificate.configure_cert(context)
    host, _, port = pair.members[member].settings["peer_listen"].rpartition(":")
    with (
        suppress(OSError),
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        return connection.recv(1)
    return b""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at often."""
    monkeypatch.setattr(file_reload, "_EVERY_S", 0.02)


@contextmanager
def changed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Files are written within, and were read at the end."""
    before = caplog.messages.count("changed file was read")
    yield
    until(lambda: caplog.messages.count("changed file was read") > before, "a changed file")


def test_the_key_is_changed_while_members_read(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """In three steps. Within each, one member has made it and the other not yet. No read is refused."""
    bucket.make_bucket(NAME)
    caplog.set_level("INFO")
    old, new = (secrets.token_hex(32).encode() for _ in range(2))
    pair = Pair(bucket, tmp_path, with_tls=False)
    for member in (0, 1):
        pair.write(member, "key", old)
    with pair:
        pair.read_both_ways()
        for lines in ((old, new), (new, old), (new,)):
            for member in (0, 1):
                with changed(caplog):
                    pair.write(member, "key", b"\n".join(lines))
                pair.read_both_ways()


def test_certificates_and_their_authority_are_changed_while_members_read(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """Both authorities are trusted, then the certificates are those of the new one, then it alone is trusted."""
    bucket.make_bucket(NAME)
    caplog.set_level("INFO")
    old, new = trustme.CA(), trustme.CA()
    both = old.cert_pem.bytes() + new.cert_pem.bytes()
    pair = Pair(bucket, tmp_path, with_tls=True)
    key = secrets.token_hex(32).encode()

    def issue(member: int, authority: trustme.CA) -> None:
        issued = authority.issue_cert(f"node-{member}")
        pair.write(member, "key.pem", issued.private_key_pem.bytes())
        pair.write(member, "cert.pem", b"".join(pem.bytes() for pem in issued.cert_chain_pems))

    for member in (0, 1):
        pair.write(member, "key", key)
        pair.write(member, "ca.pem", old.cert_pem.bytes())
        issue(member, old)
    with pair:
        pair.read_both_ways()
        for step in ("both are trusted", "a new certificate", "the new one is trusted"):
            for member in (0, 1):
                with changed(caplog):
                    if step == "a new certificate":
                        issue(member, new)
                    else:
                        pair.write(member, "ca.pem", both if step == "both are trusted" else new.cert_pem.bytes())
                pair.read_both_ways()
        assert shaken_hands(pair, 1, new.issue_cert("node-0"), new) == b"H"
        until(lambda: shaken_hands(pair, 1, old.issue_cert("node-0"), new) == b"", "the old authority is refused")
