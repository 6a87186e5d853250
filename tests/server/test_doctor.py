"""`outrider doctor` against a real bucket, a broken one and none: each finding says what to do, and holds no secret."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.cli.doctor.finding import Diagnosis, Level
from outrider.cli.doctor.job_checks import check_endpoint, job_findings
from outrider.cli.doctor.machine_checks import check_open_files, check_room, judged_speed
from outrider.cli.doctor.origin_checks import (
    OriginAnswer,
    check_answer,
    check_clock,
    check_proxy,
    endpoint_findings,
    masked,
)
from outrider.core.auth.sigv4 import Credentials
from outrider.settings import load
from tests.support.child import free_ports
from tests.support.proxy import Command, ServedProxy
from tests.support.recorder import Recorder
from tests.support.tls import TlsFront, certify

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

KEYS = Credentials("AKIAIOSFODNN7EXAMPLE", "hush")
OURS = "http://127.0.0.1:9480"


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    made = Command(bucket, tmp_path)
    listen, admin = free_ports(2)
    made.environ |= {
        "OUTRIDER_ORIGIN": bucket.endpoint,
        "OUTRIDER_LISTEN": f"127.0.0.1:{listen}",
        "OUTRIDER_ADMIN": f"127.0.0.1:{admin}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listen}",
    }
    made.without("AWS_CA_BUNDLE")
    return made


def findings(command: Command, *flags: str) -> tuple[int, dict[str, Diagnosis]]:
    done = command.run("doctor", "--json", *flags)
    assert command.environ.get("AWS_SECRET_ACCESS_KEY", "admin-secret") not in done.stdout + done.stderr
    diagnoses = [Diagnosis(**{**each, "level": Level(each["level"])}) for each in json.loads(done.stdout)]
    return done.returncode, {finding.name: finding for finding in diagnoses}


def test_all_is_well_before_a_real_bucket(command: Command, bucket: Bucket) -> None:
    status, found = findings(command)
    assert {name: finding.level for name, finding in found.items()} == dict.fromkeys(
        ("settings", "credentials", "network", "origin", "clock", "cache dir", "disk space", "disk speed", "listen",
         "admin", "open files", "job"),
        Level.OK,
    ) | {"disk speed": found["disk speed"].level}  # fmt: skip
    # The speed of this machine's disk is not under test.
    assert found["disk speed"].level in (Level.OK, Level.WARN)
    assert re.fullmatch(r"writes [\d,]+ MB/s, reads [\d,]+ MB/s", found["disk speed"].text)
    assert status == 0
    assert (masked("AKIAIOSFODNN7EXAMPLE"), masked("minio")) == ("AKIA...MPLE", "mi...")
    assert masked(bucket.access_key) in found["credentials"].text
    assert "signature accepted" in found["origin"].text
    assert not command.cache_dir.exists()
    command.cache_dir.mkdir()
    command.without("AWS_ENDPOINT_URL")
    lines = command.run("doctor").stdout.splitlines()
    assert lines[0].startswith("ok    settings ")
    assert lines[-2].startswith("warn  job ")
    assert lines[-1].strip().startswith("-> For the job: export AWS_ENDPOINT_URL=http://127.0.0.1:")
    assert {path.name for path in command.cache_dir.iterdir()} <= {"outrider-cache", "v2", "tmp"}
    assert not list((command.cache_dir / "tmp").iterdir())


def test_each_fault_is_named_with_what_to_do(command: Command, bucket: Bucket, tmp_path: Path) -> None:
    (free,) = free_ports(1)
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {bucket.endpoint}\n")
    (tmp_path / "other").mkdir()
    command.environ["AWS_CONFIG_FILE"] = "/dev/null"
    front = TlsFront(("127.0.0.1", int(bucket.address.rpartition(":")[2])), certify(tmp_path))
    private = Recorder(lambda _: b"HTTP/1.1 403 Forbidden\r\ncontent-length: 40\r\n\r\n"
                                 b"<Error><Code>AccessDenied</Code></Error>")  # fmt: skip
    with front, private, socket.create_server(("127.0.0.1", 0)) as taken:
        untrusted = {"OUTRIDER_ORIGIN": front.endpoint}
        other = untrusted | {"AWS_CA_BUNDLE": str(certify(tmp_path / "other").authority)}
        no_keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "OUTRIDER_ORIGIN": private.endpoint}
        profile = {"AWS_ACCESS_KEY_ID": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "", "AWS_PROFILE": "nobody"}
        gone = {"OUTRIDER_ORIGIN": f"http://127.0.0.1:{free}"}
        nowhere = {"OUTRIDER_ORIGIN": "http://no-such-host.invalid"}
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        fail, warn, ok = Level.FAIL, Level.WARN, Level.OK
        cases: list[tuple[dict[str, str], dict[str, tuple[Level, str]]]] = [
            ({"AWS_SECRET_ACCESS_KEY": "not-the-secret"}, {"origin": (fail, "the secret does not belong to this key")}),
            ({"AWS_ACCESS_KEY_ID": "NOBODYKNOWSTHISKEY"}, {"origin": (fail, "does not know this key")}),
            (no_keys, {"credentials": (warn, "AWS_PROFILE"), "origin": (warn, "")}),
            (profile, {"credentials": (fail, "nobody")}),
            ({"AWS_CA_BUNDLE": "/nothing.pem"}, {"origin": (fail, "AWS_CA_BUNDLE=/nothing.pem: No such file")}),
            (untrusted, {"origin": (fail, "Set AWS_CA_BUNDLE to a PEM file")}),
            (other, {"origin": (fail, str(tmp_path / "other"))}),
            (gone, {"network": (fail, ""), "origin": (fail, "")}),
            (nowhere, {"network": (fail, "no such name")}),
            # Behind an HTTP proxy the name need not resolve here.
            (nowhere | {"HTTP_PROXY": bucket.endpoint}, {"network": (ok, ""), "origin": (ok, "")}),
            ({"OUTRIDER_ORIGIN": "", "AWS_CONFIG_FILE": f"{tmp_path}/config"}, {"origin": (ok, bucket.endpoint)}),
            ({"OUTRIDER_LISTEN": at}, {"listen": (fail, "another address with --listen")}),
            ({"OUTRIDER_CACHE_DIR": f"{tmp_path}/config"}, {"cache dir": (fail, "")}),
        ]
        # No speed of a disk is measured in memory.
        usual = command.environ | {"OUTRIDER_CACHE_DIR": "memory"}
        for changes, expected in cases:
            command.environ = {key: value for key, value in (usual | changes).items() if value}
            status, found = findings(command)
            for name, (level, words) in expected.items():
                assert found[name].level is level, (changes, found[name])
                assert words in found[name].text + found[name].do, (changes, found[name])
                assert status == 1 or level is not fail, changes


def test_wrong_words_end_with_status_2(command: Command) -> None:
    for flag, value, says in (
        ("--endpoint", "http://127.0.0.1:1/train", "must be http://HOST:PORT"),
        ("--listen", "0.0.0.0:9480", "--auth sigv4"),
    ):  # fmt: skip
        done = command.run("doctor", flag, value)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in " ".join(done.stderr.split())


def test_an_outrider_that_runs_already_is_no_fault(command: Command, bucket: Bucket) -> None:
    listen, admin = command.environ["OUTRIDER_LISTEN"], command.environ["OUTRIDER_ADMIN"]
    with ServedProxy(bucket, command.cache_dir.parent, listen=listen, admin=admin):
        status, found = findings(command)
        assert status == 0
        assert all("listens there already" in found[name].text for name in ("listen", "admin"))
        relative = findings(command, "--cache-dir", os.path.relpath(command.cache_dir))[1]
        for each in (found, relative):
            assert "in use by the outrider that runs here" in each["cache dir"].text
        _, found = findings(command, "--origin", "http://127.0.0.1:1")
        assert found["listen"].level is Level.WARN
        assert found["listen"].text.endswith(f"listens there already, in front of {bucket.endpoint}")
        other = findings(command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert (other[0], other[1]["cache dir"].level) == (1, Level.FAIL)
    assert "give each its own --cache-dir" in other[1]["cache dir"].do


def test_an_outrider_whose_token_is_not_set_is_named(command: Command, bucket: Bucket) -> None:
    listen, admin = command.environ["OUTRIDER_LISTEN"], command.environ["OUTRIDER_ADMIN"]
    proxy = ServedProxy(bucket, command.cache_dir.parent, listen=listen, admin=admin)
    proxy.environment["OUTRIDER_ADMIN_TOKEN"] = "a-token"
    with proxy:
        status, found = findings(command)
        assert (status, found["admin token"].level) == (1, Level.FAIL)
        assert "Set OUTRIDER_ADMIN_TOKEN" in found["admin token"].do
        command.environ["OUTRIDER_ADMIN_TOKEN"] = "a-token"
        assert findings(command)[0] == 0


def test_a_cache_directory_that_is_gone_while_the_proxy_runs_is_named(command: Command, bucket: Bucket) -> None:
    listen, admin = command.environ["OUTRIDER_LISTEN"], command.environ["OUTRIDER_ADMIN"]
    with ServedProxy(bucket, command.cache_dir.parent, listen=listen, admin=admin):
        shutil.rmtree(command.cache_dir)
        status, found = findings(command)
    assert (status, found["cache dir"].level) == (0, Level.WARN)
    assert "Mount its disk" in found["cache dir"].do


def test_the_health_of_a_container_is_whether_it_is_ready(command: Command, bucket: Bucket) -> None:
    listen, admin = command.environ["OUTRIDER_LISTEN"], command.environ["OUTRIDER_ADMIN"]
    assert command.run("doctor", "--health").returncode == 1
    with ServedProxy(bucket, command.cache_dir.parent, listen=listen, admin=admin):
        assert command.run("doctor", "--health").returncode == 0
        assert command.run("doctor", "--probe", f"http://{admin}").returncode == 0
        assert command.run("doctor", "--probe", f"http://{admin}/healthz").returncode == 0
        status, found = findings(command, "--endpoint", f"http://{listen}")
        assert (status, sorted(found)) == (0, ["clock", "credentials", "endpoint"])
        assert "signature accepted" in found["endpoint"].text
    done = command.run("doctor", "--probe", f"http://{admin}")
    assert done.returncode == 1
    assert done.stderr == f"outrider: http://{admin}/readyz: not ready: Connection refused\n"


def answer(status: int, body: str = "", date: str | None = None, server: str = "") -> OriginAnswer:
    return OriginAnswer(status, body, date, 1000.0, 1000.2, server)


LISTED = '<?xml version="1.0"?><ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'


def refused(code: str, *, status: int = 403, server: str = "outrider") -> OriginAnswer:
    return answer(status, f"<Error><Code>{code}</Code></Error>", server=server)


@pytest.mark.parametrize(
    ("reply", "keys", "level", "do"),
    [
        (answer(200, LISTED, server="outrider"), KEYS, Level.OK, ""),
        # The key may not list buckets; the unsigned request of a test without a key is refused.
        (refused("AccessDenied"), KEYS, Level.OK, ""),
        (refused("AccessDenied"), None, Level.OK, ""),
        (refused("InvalidAccessKeyId"), KEYS, Level.FAIL, "clients file"),
        (refused("ServiceUnavailable", status=503), KEYS, Level.FAIL, "bucket is not"),
        (answer(200, server="nginx"), KEYS, Level.FAIL, "S3 port"),
        (refused("AccessDenied", server=""), None, Level.FAIL, "S3 port"),
    ],
)
def test_a_job_is_served_by_a_proxy_that_knows_its_key(
    reply: OriginAnswer, keys: Credentials | None, level: Level, do: str
) -> None:
    found = check_proxy(reply, "http://outrider.training.svc:9480", keys)
    assert found.level is level
    assert do in found.do
    assert bool(do) == bool(found.do)


async def test_an_address_where_nothing_listens_is_reported_with_the_way_to_find_out_why() -> None:
    [port] = free_ports(1)
    *_, found = [each async for each in endpoint_findings(f"http://127.0.0.1:{port}")]
    assert (found.name, found.level) == ("endpoint", Level.FAIL)
    assert "kubectl describe daemonset" in found.do


async def test_a_proxy_whose_certificate_is_not_trusted_is_reported_with_the_variable_to_set(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with TlsFront(("127.0.0.1", int(bucket.address.rpartition(":")[2])), certify(tmp_path)) as front:
        *_, found = [each async for each in endpoint_findings(front.endpoint)]
    assert (found.name, found.level) == ("endpoint", Level.FAIL)
    assert "Set AWS_CA_BUNDLE to a PEM file" in found.do


@pytest.mark.parametrize(
    ("status", "code", "keys", "level"),
    [
        (200, "", KEYS, Level.OK),
        (403, "AccessDenied", KEYS, Level.OK),
        (403, "AccessDenied", None, Level.WARN),
        (403, "InvalidAccessKeyId", KEYS, Level.FAIL),
        (400, "ExpiredToken", KEYS, Level.FAIL),
        (400, "AuthorizationHeaderMalformed", KEYS, Level.FAIL),
        (301, "PermanentRedirect", KEYS, Level.FAIL),
        (503, "SlowDown", KEYS, Level.FAIL),
        (404, "", KEYS, Level.FAIL),
    ],
)
def test_each_answer_to_a_signed_list_gives_its_finding(
    status: int, code: str, keys: Credentials | None, level: Level
) -> None:
    body = LISTED if status == 200 else f"<Error><Code>{code}</Code></Error>"
    found = check_answer(answer(status, body), "http://origin", keys)
    assert found.level is level
    assert bool(found.do) == (level is not Level.OK)


@pytest.mark.parametrize(
    ("date", "level"),
    [
        (None, Level.WARN), ("Sat, 99 Nov 2026 05:00:00 GMT", Level.WARN), (formatdate(1000, usegmt=True), Level.OK),
        (formatdate(1060, usegmt=True), Level.OK), (formatdate(1600, usegmt=True), Level.WARN),
        (formatdate(4600, usegmt=True), Level.FAIL), (formatdate(0, usegmt=True), Level.FAIL),
    ],
)  # fmt: skip
def test_a_clock_that_is_not_the_origins(date: str | None, level: Level) -> None:
    assert check_clock(answer(200, date=date)).level is level


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (judged_speed(125e6, 125e6), Level.OK), (judged_speed(124e6, 3e9), Level.WARN),
        (judged_speed(2e9, 124e6), Level.WARN), (check_open_files(1024), Level.WARN),
        (check_open_files(65536), Level.OK),
        *((check_endpoint(OURS, environ), level) for environ, level in (
            ({"AWS_ENDPOINT_URL": f"{OURS}/"}, Level.OK), ({"AWS_ENDPOINT_URL": "http://localhost:9480"}, Level.OK),
            ({"AWS_ENDPOINT_URL": "http://a:1", "OUTRIDER_STATUS_URL": "http://a:2"}, Level.OK), ({}, Level.WARN),
            ({"AWS_ENDPOINT_URL": OURS, "AWS_ENDPOINT_URL_S3": "http://minio"}, Level.WARN),
            ({"AWS_ENDPOINT_URL": OURS, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, Level.WARN),
        )),
        *((check_room(load(flags, environ={}), Path("/tmp"), 0), level) for flags, level in (
            ({"cache_size": "1MiB"}, Level.FAIL), ({"cache_size": "900TiB"}, Level.WARN),
            ({"min_free": "100%"}, Level.FAIL), ({"cache_size": "15MiB", "min_free": "0"}, Level.FAIL),
            ({"cache_size": "31MiB", "min_free": "0"}, Level.WARN),
            ({"cache_size": "64MiB", "min_free": "0"}, Level.OK),
        )),
    ],
)  # fmt: skip
def test_the_machine_and_the_jobs_endpoint_are_judged(finding: Diagnosis, level: Level) -> None:
    assert finding.level is level
    assert bool(finding.do) is (level is not Level.OK)


@pytest.mark.parametrize("body", ["", "<html><body>Welcome to nginx!</body></html>", '{"status": "ok"}'])
def test_a_server_that_lists_no_buckets_is_no_s3(body: str) -> None:
    found = check_answer(answer(200, body, server="nginx/1.27"), "http://origin", KEYS)
    assert found.level is Level.FAIL
    assert "no S3" in found.text
    assert "nginx/1.27" in found.text
    assert "--origin" in found.do


def test_the_message_of_the_origin_is_passed_on_without_what_only_the_signer_may_see() -> None:
    body = (
        "<Error><Code>InvalidAccessKeyId</Code><Message>The key &lt;x&gt; is\n locked until noon.</Message>"
        "<AWSAccessKeyId>AKIAIOSFODNN7EXAMPLE</AWSAccessKeyId></Error>"
    )
    text = check_answer(answer(403, body), "http://origin", KEYS).text
    assert "InvalidAccessKeyId: The key <x> is locked until noon." in text
    assert KEYS.access_key not in text


def test_the_region_that_the_origin_names_is_reported() -> None:
    body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    assert "its region is eu-west-1" in check_answer(answer(400, body), "http://origin", KEYS).text


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, set()),
        ({"S3_ENDPOINT_URL": "http://user:hush@minio"}, {"s5cmd"}),
        # In `outrider run`, which has set all these variables.
        ({"S3_ENDPOINT_URL": "http://127.0.0.1:4", "OUTRIDER_STATUS_URL": "http://127.0.0.1:5"}, set()),
        ({"http_proxy": "http://corporate:3128"}, {"http proxy"}),
        ({"HTTP_PROXY": "http://corporate:3128", "NO_PROXY": "a, 127.0.0.1"}, set()),
        ({"https_proxy": "http://corporate:3128"}, set()),
        ({"AWS_CA_BUNDLE": "/bundle"}, {"certificates"}),
        ({"REQUESTS_CA_BUNDLE": "/bundle"}, {"certificates"}),
    ],
)
def test_other_variables_of_the_jobs_environment_that_are_in_the_way(environ: dict[str, str], names: set[str]) -> None:
    found = list(job_findings(load({}, environ={}), {"AWS_ENDPOINT_URL": OURS, **environ}))
    assert {finding.name for finding in found} == {"job", *names}
    assert "hush" not in repr(found)
    assert not any(finding.level is Level.FAIL for finding in found)
