"""X.509 for the webhook of `outrider operator`: makes certificates, and reads them from a Secret.

Keys are ECDSA P-256: every API server takes them, those that are bound to FIPS 140 included.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from outrider.core.operator.certificates import Issued, Kept, Validity

# Five dashes in a row end what is between the lines: searching on to the end for each first line takes quadratic time.
_KEYS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-(?!----))*-----END [A-Z ]*PRIVATE KEY-----\s*")


class X509Certifier:
    """Implements `engine.operator.certificate_keeper.Certifier`."""

    def authority(self, validity: Validity) -> Issued:
        """A new authority, signed by itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        serial = x509.random_serial_number()
        # A name of its own: two authorities are trusted at a time, and chains are built by name.
        name = _name(f"outrider webhook authority {serial:x}"[:64])
        builder = _builder(name, name, key.public_key(), serial, validity)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        certificate = _pem(_signed(builder, key))
        return Issued(certificate, _key_pem(key), validity, frozenset(), issuer=certificate)

    def server(self, names: frozenset[str], by: Issued, validity: Validity) -> Issued:
        """A certificate for a server of these DNS names, signed by the authority `by`. It ends no later than that."""
        validity = Validity(max(validity.begins, by.validity.begins), min(validity.ends, by.validity.ends))
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = x509.load_pem_x509_certificate(by.certificate.encode())
        builder = _builder(
            _name("outrider webhook"), issuer.subject, key.public_key(), x509.random_serial_number(), validity
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(digital_signature=True), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in sorted(names)])
        builder = builder.add_extension(alternatives, critical=False)
        signed = _signed(builder, _load_key(by.key.encode()))
        return Issued(_pem(signed), _key_pem(key), validity, names, issuer=by.certificate)

    def read(self, data: Mapping[str, Any]) -> Kept | None:
        """The `data` of a Secret, base64; None: a part is missing or damaged, or they do not go together."""
        try:
            parts = {name: base64.b64decode(data[name]) for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
            certificates = x509.load_pem_x509_certificates(parts["ca.crt"])
            keys = _KEYS.findall(parts["ca.key"])
            authorities = [
                _read(certificate, key, _pem(certificate)) for certificate, key in zip(certificates, keys, strict=True)
            ]
            server = x509.load_pem_x509_certificate(parts["tls.crt"])
            issuer = next(filter(lambda candidate: _has_signed(candidate, server), certificates))
            return Kept(tuple(authorities), _read(server, parts["tls.key"], _pem(issuer)))
        except (KeyError, TypeError, ValueError, StopIteration, x509.ExtensionNotFound, UnsupportedAlgorithm):
            return None


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(datetime.fromtimestamp(validity.begins, UTC))
        .not_valid_after(datetime.fromtimestamp(validity.ends, UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """`key`: the issuer's."""
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(identifier, critical=False).sign(key, hashes.SHA256())


def _read(certificate: x509.Certificate, key_pem: bytes, issuer: str) -> Issued:
    """Raises ValueError: the key is that of another certificate."""
    key = _load_key(key_pem)
    as_bytes = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*as_bytes) != certificate.public_key().public_bytes(*as_bytes):
        raise ValueError("the key is that of another certificate")
    validity = Validity(certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp())
    names: frozenset[str] = frozenset()
    if _pem(certificate) != issuer:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = frozenset(alternatives.get_values_for_type(x509.DNSName))
    return Issued(_pem(certificate), _key_pem(key), validity, names, issuer)


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _usage(**bits: bool) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: bits.get(name, False) for name in names})


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises ValueError: it is none of this kind."""
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve key")
    return key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
