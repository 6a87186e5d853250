"""Mutual TLS between members, with real certificates: who is let in, before and after the files change."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from outrider.adapters.cluster.peer_tls import PeerTls
from outrider.settings import SettingsError
from tests.support.member_sources import following, settings_of

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, authority: trustme.CA, name: str = "node-1.example") -> tuple[Path, Path, Path]:
    folder.mkdir(exist_ok=True)
    paths = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
    issued = authority.issue_cert(name)
    issued.cert_chain_pems[0].write_to_path(paths[0])
    issued.private_key_pem.write_to_path(paths[1])
    authority.cert_pem.write_to_path(paths[2])
    return paths


async def exchange(server: ssl.SSLContext, client: ssl.SSLContext | None) -> bytes:
    """The peer certificate that the server saw, after bytes went both ways. `client` None: plain text."""
    seen: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await writer.drain()
        writer.close()
        seen.set_result(shown)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
    try:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        try:
            writer.write(b"hello\n")
            if await reader.readline() != b"hello\n":
                raise ConnectionResetError
        finally:
            writer.transport.abort()
        return await seen
    finally:
        listening.close()


REFUSED = (ssl.SSLError, ConnectionError)


async def test_members_of_one_authority_talk_by_whatever_address(tmp_path: Path) -> None:
    authority = trustme.CA()
    one = PeerTls(*write(tmp_path / "1", authority))
    two = PeerTls(*write(tmp_path / "2", authority, "node-2.example"))
    shown = await exchange(one.server, two.client)
    assert ssl.DER_cert_to_PEM_cert(shown).strip() == (tmp_path / "2" / "cert.pem").read_text().strip()


async def test_others_are_refused_on_both_sides(tmp_path: Path) -> None:
    ours = PeerTls(*write(tmp_path / "1", trustme.CA()))
    other = PeerTls(*write(tmp_path / "2", trustme.CA()))
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
    old = PeerTls(*write(tmp_path / "3", trustme.CA())).client
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    for server, client in (
        (ours.server, other.client), (other.server, ours.client),
        (ours.server, without), (ours.server, None), (ours.server, old),
    ):  # fmt: skip
        with pytest.raises(REFUSED):
            await exchange(server, client)


async def test_changed_files_count_for_the_server_that_listens_already(tmp_path: Path) -> None:
    before, after = trustme.CA(), trustme.CA()
    member, old = PeerTls(*write(tmp_path / "1", before)), PeerTls(*write(tmp_path / "2", before))
    new = PeerTls(*write(tmp_path / "3", after))
    server = member.server
    await exchange(server, old.client)
    with pytest.raises(REFUSED):
        await exchange(server, new.client)
    async with following(member.follow) as once:
        write(tmp_path / "1", after)
        await once()
    await exchange(server, new.client)
    await exchange(new.server, member.client)
    with pytest.raises(REFUSED):
        await exchange(server, old.client)


async def test_while_one_of_the_files_is_new_and_the_others_old_the_last_ones_count(tmp_path: Path) -> None:
    authority = trustme.CA()
    member, other = PeerTls(*write(tmp_path / "1", authority)), PeerTls(*write(tmp_path / "2", authority))
    async with following(member.follow) as once:
        issued = authority.issue_cert("node-1.example")
        issued.private_key_pem.write_to_path(tmp_path / "1" / "key.pem")
        await once()
        await exchange(member.server, other.client)
        issued.cert_chain_pems[0].write_to_path(tmp_path / "1" / "cert.pem")
        await once()
        shown = await exchange(other.server, member.client)
    assert ssl.DER_cert_to_PEM_cert(shown).strip() == issued.cert_chain_pems[0].bytes().decode().strip()


def test_files_that_do_not_go_together_are_refused_by_name(tmp_path: Path) -> None:
    cert, key, authority = write(tmp_path / "1", trustme.CA())
    for paths in (
        (cert, write(tmp_path / "2", trustme.CA())[1], authority), (cert, key, tmp_path / "none"), (cert, key, key),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=r"--peer-tls-cert .*, --peer-tls-key .*, --peer-tls-ca ") as refused:
            PeerTls(*paths)
        assert "PRIVATE" not in str(refused.value)


def test_without_the_settings_there_is_no_tls(tmp_path: Path) -> None:
    assert PeerTls.of(settings_of()) is None
    cert, key, authority = write(tmp_path, trustme.CA())
    assert PeerTls.of(settings_of(peer_tls_cert=cert, peer_tls_key=key, peer_tls_ca=authority)) is not None
