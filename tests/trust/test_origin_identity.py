"""Who the proxy is to the bucket, and what time it is there: credentials that expire, a clock that is off."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin import credentials as adapters_credentials
from tests.support.bucket import ADMIN, READER, REGION, Identity
from tests.support.proxy import Proxy
from tests.support.rawhttp import ask
from tests.support.trials import rounds
from tests.support.weather import Fault, FaultKind, Request
from tests.trust.origin import BLOCK, NAME, RIGHT, World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

NAMED_FIRST = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")


class Office:
    """What hands out credentials, as a `credential_process` of the AWS config file, and which the bucket refuses."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in NAMED_FIRST:
            monkeypatch.delenv(name, raising=False)
        self._pass, self._walks = directory / "pass.json", directory / "walks"
        script = directory / "issue.sh"
        script.write_text(f"echo >> {self._walks}; cat {self._pass}\n")
        config = directory / "config"
        config.write_text(f"[default]\ncredential_process = sh {script}\n")
        self.environment = {
            "AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(directory / "none"),
            "AWS_REGION": REGION, "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
        self._expired: set[str] = set()
        self.begin()

    @property
    def walks(self) -> int:
        return len(self._walks.read_text().splitlines())

    def issue(self, identity: Identity) -> None:
        in_an_hour = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        issued = {"Version": 1, "AccessKeyId": identity.access_key, "SecretAccessKey": identity.secret_key}
        self._pass.write_text(json.dumps({**issued, "Expiration": in_an_hour}))

    def begin(self) -> None:
        self._expired.clear()
        self.issue(READER)

    def expire(self) -> None:
        self._expired.add(READER.access_key)

    def turn(self) -> None:
        """At once the old ones are no good and there are others."""
        self.issue(ADMIN)
        self.expire()

    def refusal(self) -> Fault:
        def is_expired(request: Request) -> bool:
            return any(f"Credential={key}/" in request.headers.get("authorization", "") for key in self._expired)

        return Fault(FaultKind.STATUS, None, None, when=is_expired, status=400, code="ExpiredToken")


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Office:
    return Office(tmp_path, monkeypatch)


@pytest.fixture
def proxy(world: World, bucket: Bucket, office: Office) -> Iterator[Proxy]:
    with Proxy(bucket, world.simulator.endpoint, environment=office.environment, block_size=str(BLOCK)) as running:
        yield running


def test_credentials_that_expire_in_mid_read_are_renewed_unnoticed(
    world: World, bucket: Bucket, office: Office
) -> None:
    for prefetch in ("off", "epoch") * rounds(2):
        office.begin()
        trial = world.put(9 * BLOCK)
        origin = world.simulator.endpoint
        with Proxy(bucket, origin, environment=office.environment, block_size=str(BLOCK), prefetch=prefetch) as proxy:
            at = world.rng.randrange(BLOCK)
            turn = Fault(FaultKind.ACT, path_contains=trial.key, after_bytes=at, act=office.turn)
            with world.weather(office.refusal(), turn):
                assert trial.seen("credentials expired in mid-read, renewed", proxy, "whole") == RIGHT
                proxy.settle()


def test_what_is_refused_once_is_asked_again_by_whatever_way_it_came(
    world: World, proxy: Proxy, office: Office
) -> None:
    trial = world.put(2 * BLOCK)
    office.turn()
    with world.weather(office.refusal()):
        # A HEAD is refused without a word.
        assert ask(proxy.address, "HEAD", f"/{NAME}/{trial.key}").status == 200
    world.trials.record("origin", "credentials expired, renewed by a HEAD", RIGHT)


def test_an_upload_that_meets_expired_credentials_is_the_clients_to_repeat(
    world: World, proxy: Proxy, office: Office
) -> None:
    target, body = f"/{NAME}/renewed", world.rng.randbytes(3 * BLOCK)
    office.turn()
    with world.weather(office.refusal()):
        first = ask(proxy.address, "PUT", target, [("content-length", str(len(body)))], body)
        assert (first.status, first.code) == (503, "ServiceUnavailable")
        assert ask(proxy.address, "PUT", target, [("content-length", str(len(body)))], body).status == 200
    assert world.direct.get_object(Bucket=NAME, Key="renewed")["Body"].read() == body
    world.trials.record("writes", "credentials expired", "503 ServiceUnavailable, then 200")


def test_a_write_without_a_body_is_asked_again_since_a_refusal_says_that_nothing_was_done(
    world: World, proxy: Proxy, office: Office
) -> None:
    trial = world.put(10)
    office.turn()
    world.simulator.reset()
    with world.weather(office.refusal()):
        assert ask(proxy.address, "DELETE", f"/{NAME}/{trial.key}").status == 204
    assert world.simulator.counts().by_method["DELETE"] == 2
    world.trials.record("writes", "credentials expired, no body", "204")


def test_credentials_that_stay_expired_are_told_and_the_chain_is_not_stormed(
    world: World, proxy: Proxy, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else how often it may be walked depends on how long these take.
    monkeypatch.setattr(adapters_credentials, "_RENEW_AGAIN_S", 3600.0)
    trial = world.put(2 * BLOCK)
    office.expire()
    with world.weather(office.refusal()):
        before = office.walks
        for _ in range(rounds(5)):
            assert trial.seen("credentials expired, none new", proxy, "whole") == "400 ExpiredToken"
        assert office.walks - before <= 1
    # Whoever is there again is asked, once the chain may be walked again: here, the old ones are good after all.
    assert trial.read(proxy) == RIGHT


class Watch:
    """A clock that can be put wrong."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.off_s = off_s

    def __call__(self) -> float:
        return time.time() + self.off_s


OFF_S = [3 * 3600, -40 * 60, 400 * 86400]


@pytest.mark.parametrize("off_s", OFF_S)
def test_a_clock_that_goes_wrong_is_noticed_and_made_up_for(world: World, bucket: Bucket, off_s: float) -> None:
    watch = Watch()
    with Proxy(bucket, world.simulator.endpoint, wall_clock=watch, block_size=str(BLOCK)) as proxy:
        for watch.off_s in (off_s, 0.0, -off_s):
            for _ in range(rounds(1)):
                trial = world.put(5 * BLOCK)
                assert trial.seen("clock off", proxy, "whole") == RIGHT


@pytest.mark.parametrize("off_s", OFF_S)
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("DELETE", 204)])
def test_what_a_wrong_clock_had_refused_is_asked_again(
    world: World, bucket: Bucket, method: str, status: int, off_s: float
) -> None:
    """A HEAD is refused without a word; the refusal of a DELETE says that nothing was done."""
    trial = world.put(10)
    with Proxy(bucket, world.simulator.endpoint, wall_clock=Watch(off_s)) as proxy:
        world.simulator.reset()
        assert ask(proxy.address, method, f"/{NAME}/{trial.key}").status == status
    assert world.simulator.counts().by_method[method] == 2


@pytest.mark.parametrize("off_s", OFF_S)
def test_an_upload_that_a_wrong_clock_had_refused_is_the_clients_to_repeat(
    world: World, bucket: Bucket, off_s: float
) -> None:
    head = [("content-length", "4")]
    with Proxy(bucket, world.simulator.endpoint, wall_clock=Watch(off_s)) as proxy:
        answers = [ask(proxy.address, "PUT", f"/{NAME}/clock", head, b"body").status for _ in range(2)]
    assert answers == [503, 200]
    world.trials.record("writes", "clock off", "503 ServiceUnavailable, then 200")
