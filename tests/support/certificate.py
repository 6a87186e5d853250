"""A certificate for a server on loopback, and the authority that vouches for it: no machine trusts it by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: `chain` and `key` are the server's, `authority` is what its clients are told to trust."""

    authority: Path
    chain: Path
    key: Path


def certify(directory: Path) -> Certificate:
    """A new authority, and a certificate by it for 127.0.0.1; their files stay in `directory`.

    The two are not one self-signed certificate, since rustls takes none of an authority for a server's.
    """
    made = Certificate(*(directory / name for name in ("authority.pem", "chain.pem", "key.pem")))
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(made.authority)
    server.private_key_pem.write_to_path(made.key)
    for number, one in enumerate(server.cert_chain_pems):
        one.write_to_path(made.chain, append=number > 0)
    return made
