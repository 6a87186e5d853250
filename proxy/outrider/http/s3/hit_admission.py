"""Which requests the fast path may answer: the sender is known, and a grant covers the object. Signatures and grants
are verified here, and remembered where they hold for later requests, too.

A request that is not admitted takes the slow path, which finds out the same with all words of a refusal.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.core.auth.grants import Client
from outrider.core.auth.verification import SignedRequest
from outrider.core.errors import S3Error
from outrider.core.memo import Memo
from outrider.core.s3 import operation as operations
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.encoding import parse_query
from outrider.core.s3.operation import Operation, OperationKind
from outrider.core.s3.plain_request import PlainRequest
from outrider.http.access import Access, Principal
from outrider.http.s3.exchange import Recognised

_QUERIES_MAX = 1024
_HOSTS_MAX = 256
_GRANTED_MAX = 8192

ANYBODY = Principal(None, None, UNSIGNED)
"""The sender of each request where senders are not distinguished."""


class HitAdmission:
    def __init__(self, access: Access, domains: tuple[str, ...]) -> None:
        """`domains`: the names of the port for virtual-host style requests."""
        self._access = access
        self._domains = domains
        self._harmless_queries: Memo[bytes, bool] = Memo(_QUERIES_MAX)
        self.harmless_hosts: Memo[str, bool] = Memo(_HOSTS_MAX)
        """Hosts that no page could have pointed at this port, where requests are not signed."""
        # Access keys and names that a grant covers, and the client with that grant: it may have others some time later.
        self._granted: Memo[tuple[str, bytes], Client] = Memo(_GRANTED_MAX)
        # The last request that was classified, and its operation: also for the slow path.
        self._classified: tuple[PlainRequest | None, Operation | None] = (None, None)
        # The last request that the cache must not answer, because no grant covers it as a plain read or it is unsigned,
        # and its sender: for the slow path.
        self._not_granted: tuple[PlainRequest | None, Principal | None] = (None, None)

    def admitted(self, read: PlainRequest, name: bytes, known: Principal | None) -> Principal | None:
        """The sender, if it may read the object. `name`: of the object, as the first line has it. `known`: the sender,
        if its signature was verified before."""
        if self._access.is_open:
            return ANYBODY if self.harmless_hosts.get(read.host) or self._is_harmless_host(read.host) else None
        if known is None:
            host = operations.bucket_of_host(read.host, self._domains)
            signed = SignedRequest(read.method, read.path.decode("ascii"), read.query.decode("ascii"), read.headers())
            try:
                known = self._access.identify(signed, host)
            except S3Error:
                return None
        if known.client is None:
            return None
        # Requests of the anonymous client are never served from the cache.
        if not known.client.is_anonymous and self._is_granted(read, name, known, known.client):
            return known
        self._not_granted = read, known
        return None

    def _is_granted(self, read: PlainRequest, name: bytes, who: Principal, client: Client) -> bool:
        wanted = client.access_key, name
        if self._granted.get(wanted) is client:
            return True
        operation = self.operation(read)
        try:
            if operation is None:
                return False
            self._access.check(who, operation, None)
        except S3Error:
            return False
        self._granted.put(wanted, client)
        return True

    def _is_harmless_host(self, host: str) -> bool:
        try:
            self._access.check_sender((("host", host),))
        except S3Error:
            return False
        self.harmless_hosts.put(host, True)
        return True

    def is_harmless_query(self, query: bytes) -> bool:
        """Whether `query` is a signature alone, which does not change the reply."""
        harmless = self._harmless_queries.get(query)
        if harmless is None:
            rest = operations.without_signature(tuple(parse_query(query.decode("ascii"))))
            harmless = all(name in operations.MEANINGLESS_QUERY for name, _ in rest)
            self._harmless_queries.put(query, harmless)
        return harmless

    def operation(self, read: PlainRequest) -> Operation | None:
        """The plain GET of the object that `read` names; None: it is no plain read."""
        if self._classified[0] is not read:
            self._classified = read, self._classify(read)
        operation = self._classified[1]
        if operation is None or operation.kind not in (OperationKind.GET, OperationKind.HEAD):
            return None
        if operation.kind is OperationKind.GET and not operation.query:
            return operation
        return replace(operation, kind=OperationKind.GET, method="GET", query=())

    def _classify(self, read: PlainRequest) -> Operation | None:
        """None: the request is refused; the slow path says why."""
        target = b"%s?%s" % (read.path, read.query) if read.query else read.path
        try:
            return operations.classify(read.method, target.decode("ascii"), read.headers(), self._domains)
        except S3Error:
            return None

    def recognised(self, data: bytes, read: PlainRequest, who: Principal | None) -> bool | Recognised:
        """The findings about `data` for the slow path; False: there are none. `who` None: the sender was not
        admitted."""
        if who is None and self._not_granted[0] is read:
            who = self._not_granted[1]
        if who is None:
            return False
        return Recognised(data, who, self._classified[1] if self._classified[0] is read else None)
