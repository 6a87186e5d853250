"""Keys, certificates and grants change while the proxy runs, on SIGHUP or by themselves: no restart, and no request
fails."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.bucket import Identity
from tests.support.proxy import ServedProxy
from tests.support.rawhttp import RawConnection
from tests.support.tenants import CLIENTS, NAME, OTHER, TEAM, answer_to, wire
from tests.support.tls import TlsFront, certify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate

KEY = f"/{NAME}/team/x"
BODY = os.urandom(2_000_000)


@pytest.fixture(autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, dict.fromkeys(("team/x", "team/y"), BODY))


@contextmanager
def changed(served: ServedProxy, event: str = "changed file was read") -> Iterator[None]:
    """Files are written within. At the end the proxy got a SIGHUP, and has read them."""
    before = len(served.lines(event))
    yield
    os.kill(served.pid, signal.SIGHUP)
    served.wait_until(lambda: len(served.lines(event)) > before, event)


def test_clients_come_change_and_go_while_others_read(bucket: Bucket, tmp_path: Path) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(CLIENTS)
    with ServedProxy(bucket, tmp_path, auth="sigv4", clients=str(file), freshness="immutable") as served:

        def status(keys: tuple[str, str], target: str = KEY) -> int:
            return answer_to(served, wire(served, keys, "GET", target)).status

        signer = bucket.client(served.endpoint, Identity("team", *TEAM, ()), signature_version="s3v4")
        url = signer.generate_presigned_url("get_object", {"Bucket": NAME, "Key": "team/x"})
        presigned = f"GET {url.removeprefix(served.endpoint)} HTTP/1.1\r\nhost: {served.ready_line['listen']}\r\n\r\n"
        signer.close()
        with RawConnection(served.address) as kept:
            signed = wire(served, TEAM, "GET", KEY)
            kept.send(signed)
            assert kept.read_answer("GET").status == 200
            # Once more, from the cache: its grant is remembered there.
            assert (status(TEAM), status(OTHER)) == (200, 403)
            assert [answer_to(served, presigned.encode()).status for _ in range(2)] == [200, 200]
            with changed(served):
                file.write_text(CLIENTS.replace('prefix = "other/"', 'prefix = ""'))
            assert (status(TEAM), status(OTHER)) == (200, 200)
            with changed(served):
                file.write_text(CLIENTS.replace('prefix = "team/"', 'prefix = "elsewhere/"'))
            assert (status(TEAM), status(OTHER)) == (403, 403)
            kept.send(signed)
            assert kept.read_answer("GET").status == 403
            with changed(served, "changed file is wrong, its last content counts"):
                file.write_text(CLIENTS + "[[client]]\nnonsense = 1\n")
            assert (status(TEAM), status(TEAM, f"/{NAME}/elsewhere/z"), status(OTHER)) == (403, 404, 403)
            with changed(served):
                file.write_text(CLIENTS.replace(TEAM[1], "another/secret"))
            assert (status(TEAM), status((TEAM[0], "another/secret"))) == (403, 200)
            assert answer_to(served, presigned.encode()).status == 403
        assert TEAM[1] not in served.log.read_text()


def test_the_certificate_of_the_port_is_renewed(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = certify(tmp_path / "old"), certify(tmp_path / "new")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    put((chain, key), old)
    proxy = ServedProxy(bucket, tmp_path, tls_cert=str(chain), tls_key=str(key))
    with proxy as served, secured(served, old) as kept:
        assert kept.ask("GET", KEY).status == 200
        with changed(served, "changed file is wrong, its last content counts"):
            shutil.copy(new.chain, chain)
        with secured(served, old):
            pass
        with changed(served):
            shutil.copy(new.key, key)
        with secured(served, new) as renewed:
            assert renewed.ask("GET", KEY).body == BODY
        with pytest.raises(ssl.SSLCertVerificationError), secured(served, old):
            pass
        # A connection that was there goes on.
        assert kept.ask("GET", KEY).status == 200


def test_the_bucket_s_certificate_may_come_from_another_authority(bucket: Bucket, tmp_path: Path) -> None:
    """For small bodies, and for those that receivers bring."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = certify(tmp_path / "old"), certify(tmp_path / "new")
    trusted = tmp_path / "trusted.pem"
    shutil.copy(old.authority, trusted)
    host, _, port = bucket.endpoint.removeprefix("http://").rpartition(":")
    with TlsFront((host, int(port)), old) as front:
        served = ServedProxy(bucket, tmp_path, front.endpoint, freshness="always", prefetch="off", receivers="1")
        served.environment["AWS_CA_BUNDLE"] = str(trusted)
        with served, RawConnection(served.address) as connection:
            assert connection.ask("GET", KEY).body == BODY
            front.renew(new)
            with changed(served):
                shutil.copy(new.authority, trusted)
            for key in ("team/y", "team/x"):
                assert connection.ask("GET", f"/{NAME}/{key}").body == BODY
            assert connection.ask("HEAD", f"/{NAME}/team/y").status == 200


def put(places: tuple[Path, Path], certificate: Certificate) -> None:
    shutil.copy(certificate.chain, places[0])
    shutil.copy(certificate.key, places[1])


@contextmanager
def secured(served: ServedProxy, certificate: Certificate) -> Iterator[RawConnection]:
    with RawConnection(served.address) as connection:
        trusting = ssl.create_default_context(cafile=certificate.authority)
        connection.secure(trusting)
        yield connection
