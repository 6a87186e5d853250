"""Who asks, and may he: the two modes of the S3 port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.core.auth import browser_guard
from outrider.core.auth.form_policy import SizeRange, parse_policy, signer_of
from outrider.core.auth.grants import Client, allowed, may_read
from outrider.core.auth.sigv4 import Identity, SignedRequest, SigningKeys, verify
from outrider.core.errors import AccessDenied
from outrider.core.memo import Memo
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.body_integrity import UNSIGNED, PayloadRule, payload_rule
from outrider.core.s3.encoding import OF_STORES
from outrider.core.s3.form_fields import PostForm
from outrider.core.s3.operation import Operation
from outrider.ports import Clock

# Presigned URLs of which one look was enough: some 2 KiB each.
_PROVED_MAX = 1024
# What stands before an app in a reader's name, as in a User-Agent.
_APP = "app/"


@dataclass(frozen=True, slots=True)
class Who:
    """The one who asks. `client` None: nobody in particular (loopback mode)."""

    client: Client | None
    identity: Identity | None
    payload: PayloadRule


def reader_name(who: Who, address: str, app: str) -> str:
    """Who reads, as far as a proxy can tell jobs apart: the address that he comes from, the key that he signs with, and
    what he calls himself.

    One name for all connections, processes and workers of a job in a pod. `address`: see `Wire`. `app`: see
    `useragent.app_of`.
    """
    name = f"{address} {who.client.access_key}" if who.client else address
    return f"{name} {_APP}{app}" if app else name


def reader_shown(names: Mapping[str, str], reader: str) -> str:
    """A reader's name as people may see it: `names` has what stands for each access key."""
    address, *rest = reader.split(" ")
    # No access key has a slash in it, as its place in a signature is between two.
    shown = (one.removeprefix(_APP) if one.startswith(_APP) else names.get(one, "") for one in rest)
    return " ".join(filter(None, (address, *shown)))


class Access(Protocol):
    @property
    def is_open(self) -> bool:
        """Nobody is asked who he is."""
        ...

    def owner(self, access_key: str) -> Who | None:
        """Whose an order is that outlived a stop; None: nobody's whom we know. `access_key` empty: nobody signed it."""
        ...

    def check_sender(self, headers: Headers) -> None:
        """To be asked before all else. Raises AccessDenied: a web page sends this, and must not."""
        ...

    def identify(self, request: SignedRequest, bucket_of_host: str | None) -> Who:
        """Raises S3Error: the signature is missing or wrong."""
        ...

    def identify_form(self, form: PostForm, bucket: str, headers: Headers) -> tuple[Who, SizeRange]:
        """Who signed the form's policy, which allows the form; and how long the file may be.

        Raises S3Error: the policy is missing, wrong, or against it.
        """
        ...

    def check(self, who: Who, operation: Operation, keys_in_body: Sequence[str] | None) -> None:
        """Raises AccessDenied: no grant covers it."""
        ...

    def check_reads(self, who: Who, refs: Iterable[ObjectRef]) -> None:
        """Raises AccessDenied: one of them he may not read."""
        ...


def _told_by_url(request: SignedRequest) -> tuple[str, str, str, str] | None:
    """All that the signature of a presigned URL hangs on, where it covers the host and need cover nothing else."""
    if "X-Amz-SignedHeaders=host&" not in request.raw_query:
        return None
    host = ""
    for name, value in request.headers:
        if name == "host":
            host += f"{value}\n"
        elif name.startswith(OF_STORES) or name == "authorization":
            return None
    return request.method, request.raw_path, request.raw_query, host


class Loopback:
    """The pod is the border: any signature is accepted, or none."""

    is_open = True

    def __init__(self, domains: Sequence[str] = (), *, cross_site: bool = False) -> None:
        """`domains`: the names of this port, `cross_site`: web pages may ask, whoever served them."""
        self._domains = domains
        self._cross_site = cross_site

    def owner(self, access_key: str) -> Who | None:
        return None if access_key else Who(None, None, UNSIGNED)

    def check_sender(self, headers: Headers) -> None:
        if not self._cross_site:
            browser_guard.check_host(next((value for name, value in headers if name == "host"), ""), self._domains)
            browser_guard.check_page(headers)

    def identify(self, request: SignedRequest, bucket_of_host: str | None) -> Who:
        return Who(None, None, payload_rule(request.headers))

    def identify_form(self, form: PostForm, bucket: str, headers: Headers) -> tuple[Who, SizeRange]:
        # Its policy goes on to the origin, which judges by it.
        return Who(None, None, UNSIGNED), SizeRange()

    def check(self, who: Who, operation: Operation, keys_in_body: Sequence[str] | None) -> None:
        pass

    def check_reads(self, who: Who, refs: Iterable[ObjectRef]) -> None:
        pass


class SigV4:
    """Every request carries a good signature of a client key, and a grant of that client covers it."""

    is_open = False

    def check_sender(self, headers: Headers) -> None:
        pass  # a page has no key, and what it was given a signature for, it may ask

    def __init__(self, clients: Mapping[str, Client], secrets: Mapping[str, str], clock: Clock) -> None:
        self._clients = clients
        self._secrets = secrets
        self._clock = clock
        self._keys = SigningKeys()
        # What was proved by URLs that are asked for again and again, each time for another range.
        self._proved: Memo[tuple[str, str, str, str], Who] = Memo(_PROVED_MAX)

    def owner(self, access_key: str) -> Who | None:
        client = self._clients.get(access_key)
        return None if client is None else Who(client, None, UNSIGNED)

    def identify(self, request: SignedRequest, bucket_of_host: str | None) -> Who:
        told = _told_by_url(request)
        who = None if told is None else self._proved.get(told)
        if who is not None and who.identity is not None and self._clock() <= who.identity.until:
            return who
        who = self._identify(request, bucket_of_host)
        if told is not None and who.identity is not None and who.identity.until:
            self._proved.put(told, who)
        return who

    def _identify(self, request: SignedRequest, bucket_of_host: str | None) -> Who:
        identity = verify(
            request, secret_of=self._secrets.get, now=self._clock(), keys=self._keys, bucket_of_host=bucket_of_host
        )
        if identity is None:
            raise AccessDenied("Anonymous access is not allowed here: sign the request with a client key.")
        return Who(self._clients[identity.access_key], identity, identity.payload)

    def identify_form(self, form: PostForm, bucket: str, headers: Headers) -> tuple[Who, SizeRange]:
        # A form says what it wants in its fields, which its policy covers; headers are under no signature.
        for name, _ in headers:
            if name.startswith(OF_STORES):
                raise AccessDenied(f"There were headers present in the request which were not signed: {name}")
        access_key = signer_of(form, secret_of=self._secrets.get, keys=self._keys)
        policy = parse_policy(form.values["policy"])
        policy.check(form, bucket, self._clock())
        return Who(self._clients[access_key], None, UNSIGNED), policy.sizes

    def check(self, who: Who, operation: Operation, keys_in_body: Sequence[str] | None) -> None:
        assert who.client is not None
        if not allowed(who.client, operation, keys_in_body):
            raise AccessDenied

    def check_reads(self, who: Who, refs: Iterable[ObjectRef]) -> None:
        assert who.client is not None
        for ref in refs:
            if not may_read(who.client, ref):
                raise AccessDenied(f"No grant of this client key covers {ref}.")
