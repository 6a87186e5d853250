"""Authentication and authorisation of the S3 port, in its two modes: loopback and SigV4."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outrider.core.auth import browser_guard
from outrider.core.auth.form_policy import SizeRange, is_unsigned, parse_policy, signer_of
from outrider.core.auth.grants import Client, may_read, missing_grant
from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.auth.verification import Identity, SignedRequest, is_half_signed, verify
from outrider.core.cache.tenants import NOBODY, Tenants
from outrider.core.errors import AccessDenied
from outrider.core.memo import Memo
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.body_integrity import UNSIGNED, PayloadRule, payload_rule
from outrider.core.s3.encoding import STORE_HEADERS
from outrider.core.s3.form_fields import PostForm
from outrider.core.s3.operation import Operation
from outrider.ports import Clock
from outrider.settings import Settings
from outrider.settings.clients_file import Clients, read_clients, shares_of

# Presigned URLs whose signature need not be verified again: some 2 KiB each.
_PROVED_MAX = 1024
# The mark of an app in a reader's name, as in a User-Agent.
_APP = "app/"


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `client` None: senders are not distinguished (loopback mode)."""

    client: Client | None
    identity: Identity | None
    payload: PayloadRule

    @property
    def is_anonymous(self) -> bool:
        """See `grants.Client`."""
        return self.client is not None and self.client.is_anonymous


def reader_name(who: Principal, address: str, app: str) -> str:
    """The name of a reader, as far as a proxy can distinguish jobs: the address that the request comes from, the key
    that signs it, and the app that it names.

    All connections, processes and workers of a job in a pod share one name. `address`: see `WireSender`. `app`: see
    `headers.app_of`.
    """
    name = f"{address} {who.client.access_key}" if who.client else address
    return f"{name} {_APP}{app}" if app else name


def reader_shown(names: Mapping[str, str], reader: str) -> str:
    """A reader's name as people may see it: `names` has the name to show for each access key."""
    address, *rest = reader.split(" ")
    # No access key has a slash in it: a signature has the key between two slashes.
    shown = (part.removeprefix(_APP) if part.startswith(_APP) else names.get(part, "") for part in rest)
    return " ".join(filter(None, (address, *shown)))


class Access(Protocol):
    """Decides who sends a request, and whether the sender may do what it asks for."""

    @property
    def is_open(self) -> bool:
        """No request needs a signature."""
        ...

    def owner(self, access_key: str) -> Principal | None:
        """The owner of a maintenance command that outlived a stop; None: the key is not known any more. `access_key`
        empty: the command was not signed."""
        ...

    def check_sender(self, headers: Headers) -> None:
        """To be called before anything else. Raises AccessDenied: the request comes from a web page that must not send
        it."""
        ...

    def identify(self, request: SignedRequest, bucket_of_host: str | None) -> Principal:
        """Raises S3Error: the signature is missing or wrong."""
        ...

    def identify_form(self, form: PostForm, bucket: str, headers: Headers) -> tuple[Principal, SizeRange]:
        """The signer of the form's policy, which allows this form, and the sizes that the policy allows for the file.

        Raises S3Error: the policy is missing, wrong, or does not allow the form.
        """
        ...

    def check(self, who: Principal, operation: Operation, keys_in_body: Sequence[str] | None) -> None:
        """Raises AccessDenied: no grant of the sender covers the operation. `keys_in_body`: see
        `grants.missing_grant`."""
        ...

    def check_reads(self, who: Principal, refs: Iterable[ObjectRef]) -> None:
        """Raises AccessDenied: the sender may not read one of these objects."""
        ...


def _signed_by_url(request: SignedRequest) -> tuple[str, str, str, str] | None:
    """The parts of a presigned request that its signature depends on; None: the signature must cover more headers than
    the host."""
    if "X-Amz-SignedHeaders=host&" not in request.raw_query:
        return None
    host = ""
    for name, value in request.headers:
        if name == "host":
            host += f"{value}\n"
        elif name.startswith(STORE_HEADERS) or name == "authorization":
            return None
    return request.method, request.raw_path, request.raw_query, host


class Loopback:
    """Loopback mode: only processes of the same pod reach the port, so any signature is accepted, or none."""

    is_open = True

    def __init__(self, domains: Sequence[str] = (), *, cross_site: bool = False) -> None:
        """`domains`: the names of this port. `cross_site`: web pages of any site may send requests."""
        self._domains = domains
        self._cross_site = cross_site

    def owner(self, access_key: str) -> Principal | None:
        return None if access_key else Principal(None, None, UNSIGNED)

    def check_sender(self, headers: Headers) -> None:
        if not self._cross_site:
            browser_guard.check_host(dict(headers).get("host", ""), self._domains)
            browser_guard.check_page(headers)

    def identify(self, request: SignedRequest, bucket_of_host: str | None) -> Principal:
        return Principal(None, None, payload_rule(request.headers))

    def identify_form(self, form: PostForm, bucket: str, headers: Headers) -> tuple[Principal, SizeRange]:
        # The policy is passed on to the origin, which checks it.
        return Principal(None, None, UNSIGNED), SizeRange()

    def check(self, who: Principal, operation: Operation, keys_in_body: Sequence[str] | None) -> None:
        pass

    def check_reads(self, who: Principal, refs: Iterable[ObjectRef]) -> None:
        pass


class SigV4:
    """SigV4 mode: every request carries a good signature of a client key, and a grant of that client covers it.

    Requests without any signature are those of the anonymous client, if there is one.
    """

    is_open = False

    def __init__(self, clock: Clock, *, cross_site: bool = False) -> None:
        """`cross_site`: web pages of any site may send requests that are not signed."""
        self._clock = clock
        self._cross_site = cross_site
        self._keys = SigningKeys()
        self.renew({}, {}, None)

    def renew(self, clients: Mapping[str, Client], secrets: Mapping[str, str], anonymous: Client | None) -> None:
        """These are the clients from now on; requests that were identified before go on. By access key. `anonymous`
        None: requests without a signature are refused."""
        self._clients, self._secrets, self._anonymous = clients, secrets, anonymous
        # Presigned URLs that were verified: they are used again and again, each time for another range.
        self._proved: Memo[tuple[str, str, str, str], Principal] = Memo(_PROVED_MAX)

    def check_sender(self, headers: Headers) -> None:
        pass  # a web page has no key, and may send the requests that it was given a signature for

    def owner(self, access_key: str) -> Principal | None:
        client = self._clients.get(access_key)
        return None if client is None else Principal(client, None, UNSIGNED)

    def identify(self, request: SignedRequest, bucket_of_host: str | None) -> Principal:
        signed = _signed_by_url(request)
        who = None if signed is None else self._proved.get(signed)
        if who is not None and who.identity is not None and self._clock() <= who.identity.until:
            return who
        who = self._identify(request, bucket_of_host)
        if signed is not None and who.identity is not None and who.identity.until:
            self._proved.put(signed, who)
        return who

    def _identify(self, request: SignedRequest, bucket_of_host: str | None) -> Principal:
        identity = verify(
            request, secret_of=self._secrets.get, now=self._clock(), keys=self._keys, bucket_of_host=bucket_of_host
        )
        if identity is None:
            return self._unsigned(request)
        return Principal(self._clients[identity.access_key], identity, identity.payload)

    def _unsigned(self, request: SignedRequest) -> Principal:
        if self._anonymous is None:
            raise AccessDenied("Anonymous access is not allowed here: sign the request with a client key.")
        if is_half_signed(request):
            raise AccessDenied("The request has a part of a signature: sign it whole, or not at all.")
        if not self._cross_site:
            # The page may come from anywhere, while this port may be open to a private network alone.
            browser_guard.check_page(request.headers)
        payload = payload_rule(request.headers)
        if payload.chunks_signed:
            raise AccessDenied("The chunks of the body are signed, and the request is not.")
        return Principal(self._anonymous, None, payload)

    def identify_form(self, form: PostForm, bucket: str, headers: Headers) -> tuple[Principal, SizeRange]:
        # The policy covers the fields of the form, which say all that it asks for; no signature covers the headers.
        for name, _ in headers:
            if name.startswith(STORE_HEADERS):
                raise AccessDenied(f"There were headers present in the request which were not signed: {name}")
        if self._anonymous is not None and is_unsigned(form):
            if not self._cross_site:
                browser_guard.check_page(headers)
            return Principal(self._anonymous, None, UNSIGNED), SizeRange()
        access_key = signer_of(form, secret_of=self._secrets.get, keys=self._keys)
        policy = parse_policy(form.values["policy"])
        policy.check(form, bucket, self._clock())
        return Principal(self._clients[access_key], None, UNSIGNED), policy.sizes

    def check(self, who: Principal, operation: Operation, keys_in_body: Sequence[str] | None) -> None:
        assert who.client is not None
        missing = missing_grant(who.client, operation, keys_in_body)
        if missing is not None:
            raise AccessDenied(missing)

    def check_reads(self, who: Principal, refs: Iterable[ObjectRef]) -> None:
        assert who.client is not None
        for ref in refs:
            if not may_read(who.client, ref):
                raise AccessDenied(f"No grant of this client covers {ref}.")


class Senders:
    """Has the access of the settings, and the names to show of senders. With `auth = sigv4` they are of the last right
    content of the clients file. On the running loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.access: Access
        self.names: dict[str, str] = {}
        """The name to show for each access key."""
        self.tenants: Tenants | None = None
        """None: senders are not distinguished."""
        if settings.auth == "loopback":
            self.access = Loopback(settings.domain, cross_site=settings.cross_site)
        else:
            self.tenants = Tenants()
            self.access = self._sigv4 = SigV4(time.time, cross_site=settings.cross_site)
            self._clients = settings.known_clients, settings.anonymous_client
            self._renew(self._clients)

    def read(self) -> bool:
        """In any thread: whether the clients file has changed. Raises SettingsError."""
        assert self._settings.clients is not None
        clients = read_clients(self._settings.clients)
        if clients == self._clients:
            return False
        self._clients = clients
        self._loop.call_soon_threadsafe(self._renew, clients)
        return True

    def _renew(self, clients: Clients) -> None:
        known, anonymous = clients
        secrets = {client.access_key: secret.get_secret_value() for client, secret in known}
        self._sigv4.renew({client.access_key: client for client, _ in known}, secrets, anonymous)
        # Readers that were there before keep their names.
        self.names |= {client.access_key: client.name for client, _ in known}
        assert self.tenants is not None
        self.tenants.renew(shares_of(clients))

    def tenant_of(self, reader: str) -> str:
        """The tenant that a reader belongs to (see `reader_name`), also one at another member of a cluster."""
        parts = reader.split(" ", 2)
        return self.names.get(parts[1], NOBODY) if len(parts) > 1 else NOBODY
