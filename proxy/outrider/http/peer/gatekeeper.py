"""Which requests to the peer port come from a member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiohttp.web_request import BaseRequest

from outrider.core.auth.peer_signature import PROOF, NotAMember, proof_of, verify_member
from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.auth.verification import SignedRequest
from outrider.core.cluster import peer_wire
from outrider.core.cluster.peer_wire import Asker
from outrider.core.cluster.replay_guard import ReplayGuard
from outrider.core.cluster.wire_forms import WireError
from outrider.core.model import Headers
from outrider.ports import Clock


class Refused(Exception):
    """`why`: a metric's label."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Gatekeeper:
    """`name`: of this member. `secrets`: the keys of the cluster of now, any of which may have signed. `clock`: the
    wall clock."""

    def __init__(self, name: str, secrets: Callable[[], Sequence[str]], guard: ReplayGuard, clock: Clock) -> None:
        self._name = name
        self._secrets = secrets
        self._guard = guard
        self._clock = clock
        self._keys = SigningKeys()

    def admit(self, request: BaseRequest) -> tuple[Asker, dict[str, str], str]:
        """The member that sent the request, the headers by name, and the hash that the body must have.

        Raises Refused.
        """
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip())
            for name, value in request.raw_headers
        )
        path, _, query = request.raw_path.partition("?")
        now = self._clock()
        try:
            body_hash = verify_member(
                SignedRequest(request.method, path, query, headers), self._secrets(), now, self._keys
            )
        except NotAMember as error:
            raise Refused(403, error.why) from error
        # A header that came twice is one value here, joined by a comma: none of ours then has its form.
        values: dict[str, str] = {}
        for name, value in headers:
            values[name] = f"{values[name]},{value}" if name in values else value
        try:
            asker = peer_wire.parse_asker(values)
            boot, number = peer_wire.sequence_of(values)
        except WireError as error:
            raise Refused(400, "garbage") from error
        if asker.hops != 1:
            raise Refused(400, "hops")
        # Not the Host: a member is reached by names, addresses and ports that it does not know of.
        if asker.receiver not in ("", self._name):
            raise Refused(403, "receiver")
        if not self._guard.admit(asker.name, boot, number, now):
            raise Refused(403, "replay")
        return asker, values, body_hash

    def proved(self, asked: Mapping[str, str], status: int, headers: Headers, body: bytes = b"") -> Headers:
        """The headers of an answer, with its proof. `asked`: the headers of the request, which was admitted."""
        proof = proof_of(asked.get("authorization", ""), self._secrets(), status, headers, body)
        return (*headers, (PROOF, proof))
