"""The proxy's credentials for the origin, and its clock: credentials that expire, and a clock that is off."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin import credentials as adapters_credentials
from tests.support.bucket import ADMIN, READER, REGION, Identity
from tests.support.conditions import Fault, FaultKind, Request
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask
from tests.support.trials import rounds
from tests.trust.origin import BLOCK, NAME, RIGHT, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAMED_FIRST = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


class CredentialProcess:
    """A `credential_process` of the AWS config file, and the list of the credentials that the bucket refuses as
    expired."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in NAMED_FIRST:
            monkeypatch.delenv(name, raising=False)
        self._credentials, self._calls = directory / "credentials.json", directory / "calls"
        script = directory / "issue.sh"
        script.write_text(f"echo >> {self._calls}; cat {self._credentials}\n")
        config = directory / "config"
        config.write_text(f"[default]\ncredential_process = sh {script}\n")
        self.environment = {
            "AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(directory / "none"),
            "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
        self._expired: set[str] = set()
        self.begin()

    @property
    def calls(self) -> int:
        return len(self._calls.read_text().splitlines())

    def issue(self, identity: Identity) -> None:
        in_an_hour = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        issued = {"Version": 1, "AccessKeyId": identity.access_key, "SecretAccessKey": identity.secret_key}
        self._credentials.write_text(json.dumps({**issued, "Expiration": in_an_hour}))

    def begin(self) -> None:
        self._expired.clear()
        self.issue(READER)

    def expire(self) -> None:
        self._expired.add(READER.access_key)

    def rotate(self) -> None:
        """At the same moment the old credentials expire and new ones are issued."""
        self.issue(ADMIN)
        self.expire()

    def refusal(self) -> Fault:
        def is_expired(request: Request) -> bool:
            return any(f"Credential={key}/" in request.headers.get("authorization", "") for key in self._expired)

        return Fault(FaultKind.STATUS, None, None, when=is_expired, status=400, code="ExpiredToken")


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialProcess:
    return CredentialProcess(tmp_path, monkeypatch)


@pytest.fixture
def proxy(world: World, bucket: Bucket, issuer: CredentialProcess) -> Iterator[Proxy]:
    with Proxy(bucket, world.simulator.endpoint, environment=issuer.environment, block_size=str(BLOCK)) as running:
        yield running


def test_credentials_that_expire_in_mid_read_are_renewed_unnoticed(
    world: World, bucket: Bucket, issuer: CredentialProcess
) -> None:
    for prefetch in ("off", "epoch") * rounds(2):
        issuer.begin()
        trial = world.put(9 * BLOCK)
        origin = world.simulator.endpoint
        with Proxy(bucket, origin, environment=issuer.environment, block_size=str(BLOCK), prefetch=prefetch) as proxy:
            at = world.rng.randrange(BLOCK)
            rotate = Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=at, act=issuer.rotate)
            with world.conditions(issuer.refusal(), rotate):
                assert trial.seen("credentials expired in mid-read, renewed", proxy, "whole") == RIGHT
                proxy.settle()


def test_a_request_that_expired_credentials_refused_is_repeated_also_when_it_is_a_head(
    world: World, proxy: Proxy, issuer: CredentialProcess
) -> None:
    trial = world.put(2 * BLOCK)
    issuer.rotate()
    with world.conditions(issuer.refusal()):
        # The refusal of a HEAD has no body, and so no error code.
        assert ask(proxy.address, "HEAD", f"/{NAME}/{trial.key}").status == 200
    world.trials.record("origin", "credentials expired, renewed by a HEAD", RIGHT)


def test_an_upload_that_meets_expired_credentials_is_left_to_the_client_to_repeat(
    world: World, proxy: Proxy, issuer: CredentialProcess
) -> None:
    target, body = f"/{NAME}/renewed", world.rng.randbytes(3 * BLOCK)
    issuer.rotate()
    with world.conditions(issuer.refusal()):
        first = ask(proxy.address, "PUT", target, [("content-length", str(len(body)))], body)
        assert (first.status, first.code) == (503, "ServiceUnavailable")
        assert ask(proxy.address, "PUT", target, [("content-length", str(len(body)))], body).status == 200
    assert world.direct.get_object(Bucket=NAME, Key="renewed")["Body"].read() == body
    world.trials.record("writes", "credentials expired", "503 ServiceUnavailable, then 200")


def test_a_write_without_a_body_is_repeated_since_a_refusal_says_that_nothing_was_done(
    world: World, proxy: Proxy, issuer: CredentialProcess
) -> None:
    trial = world.put(10)
    issuer.rotate()
    world.simulator.reset()
    with world.conditions(issuer.refusal()):
        assert ask(proxy.address, "DELETE", f"/{NAME}/{trial.key}").status == 204
    assert world.simulator.counts().by_method["DELETE"] == 2
    world.trials.record("writes", "credentials expired, no body", "204")


def test_credentials_that_stay_expired_are_reported_and_the_chain_is_not_called_in_a_storm(
    world: World, proxy: Proxy, issuer: CredentialProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without this long pause the number of calls of the chain would depend on how long the reads take.
    monkeypatch.setattr(adapters_credentials, "_RENEW_AGAIN_S", 3600.0)
    trial = world.put(2 * BLOCK)
    issuer.expire()
    with world.conditions(issuer.refusal()):
        before = issuer.calls
        for _ in range(rounds(5)):
            assert trial.seen("credentials expired, none new", proxy, "whole") == "400 ExpiredToken"
        assert issuer.calls - before <= 1
    # Once the chain may be called again, the proxy sends requests again; here the old credentials turn out to be good.
    assert trial.read(proxy) == RIGHT


class WrongClock:
    """A clock that can be set wrong."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.off_s = off_s

    def __call__(self) -> float:
        return time.time() + self.off_s


OFF_S = [3 * 3600, -40 * 60, 400 * 86400]


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_clock_that_goes_wrong_is_noticed_and_corrected(world: World, bucket: Bucket, off_s: float) -> None:
    watch = WrongClock()
    with Proxy(bucket, world.simulator.endpoint, wall_clock=watch, block_size=str(BLOCK)) as proxy:
        for watch.off_s in (off_s, 0.0, -off_s):
            for _ in range(rounds(1)):
                trial = world.put(5 * BLOCK)
                assert trial.seen("clock off", proxy, "whole") == RIGHT


@pytest.mark.parametrize(("method", "status", "off_s"), [("HEAD", 200, OFF_S[0]), ("DELETE", 204, OFF_S[1])])
def test_a_request_that_was_refused_for_a_wrong_clock_is_repeated(
    world: World, bucket: Bucket, method: str, status: int, off_s: float
) -> None:
    """The refusal of a HEAD has no body. The refusal of a DELETE says that nothing was done."""
    trial = world.put(10)
    with Proxy(bucket, world.simulator.endpoint, wall_clock=WrongClock(off_s)) as proxy:
        world.simulator.reset()
        assert ask(proxy.address, method, f"/{NAME}/{trial.key}").status == status
    assert world.simulator.counts().by_method[method] == 2


def test_an_upload_that_was_refused_for_a_wrong_clock_is_left_to_the_client_to_repeat(
    world: World, bucket: Bucket
) -> None:
    head = [("content-length", "4")]
    with Proxy(bucket, world.simulator.endpoint, wall_clock=WrongClock(OFF_S[0])) as proxy:
        answers = [ask(proxy.address, "PUT", f"/{NAME}/clock", head, b"body").status for _ in range(2)]
    assert answers == [503, 200]
    world.trials.record("writes", "clock off", "503 ServiceUnavailable, then 200")
