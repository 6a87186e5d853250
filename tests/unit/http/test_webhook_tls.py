"""The webhook's TLS: handshakes in memory, against an API server that trusts an authority and knows the name."""

from __future__ import annotations

import ssl
import time

import pytest

from outrider.adapters.kubernetes.certificates import X509Certifier
from outrider.core.operator.certificates import Issued, Validity
from outrider.http.operator.server import ServerCertificate

HOST = "outrider-operator.cache.svc"


def made(names: frozenset[str] = frozenset({HOST})) -> tuple[Issued, Issued]:
    """An authority, and a server's certificate that it signed."""
    validity = Validity(time.time() - 3600, time.time() + 3600)
    authority = X509Certifier().authority(validity)
    return authority, X509Certifier().server(names, authority, validity)


def connect(server: ssl.SSLContext, bundle: str, *, most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLObject:
    """The client's side after a handshake. Raises ssl.SSLError."""
    client = ssl.create_default_context(cadata=bundle)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    client.maximum_version = most
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    calling = client.wrap_bio(to_client, to_server, server_hostname=HOST)
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    done = set[int]()
    for _ in range(5):
        for side in (calling, serving):
            try:
                side.do_handshake()
                done.add(id(side))
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2
    return calling


def shown_by(calling: ssl.SSLObject) -> str:
    der = calling.getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der)


@pytest.mark.parametrize("most", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_each_new_connection_sees_the_certificate_of_now(most: ssl.TLSVersion) -> None:
    (first, one), (second, two) = made(), made()
    certificate = ServerCertificate()
    context = certificate.context
    for server in (one, two, one):
        certificate.show(server)
        assert shown_by(connect(context, first.certificate + second.certificate, most=most)) == server.certificate


def test_the_server_refuses_until_it_has_one() -> None:
    authority, _ = made()
    with pytest.raises(ssl.SSLError):
        connect(ServerCertificate().context, authority.certificate)


@pytest.mark.parametrize("why", ["authority", "name"])
def test_an_api_server_refuses_another_authority_and_another_name(why: str) -> None:
    authority, server = made(frozenset({HOST if why == "authority" else "other.cache.svc"}))
    certificate = ServerCertificate()
    certificate.show(server)
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(certificate.context, made()[0].certificate if why == "authority" else authority.certificate)
