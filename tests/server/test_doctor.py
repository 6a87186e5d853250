"""`outrider doctor` against a real bucket, a broken one and none: each finding says what to do, and holds no secret."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Iterator
    from pathlib import Path

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
    assert command.environ["AWS_SECRET_ACCESS_KEY"] not in done.stdout + done.stderr
    told = [Diagnosis(**{**each, "level": Level(each["level"])}) for each in json.loads(done.stdout)]
    return done.returncode, {finding.name: finding for finding in told}


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
    assert masked(bucket.access_key) in found["credentials"].text
    assert "signature accepted" in found["origin"].text
    assert not command.cache_dir.exists()


@pytest.mark.parametrize(
    ("write_bytes_s", "read_bytes_s", "level"),
    [(2e9, 3e9, Level.OK), (125e6, 125e6, Level.OK), (124e6, 3e9, Level.WARN), (2e9, 124e6, Level.WARN)],
)
def test_a_disk_slower_than_a_network_makes_no_cache(write_bytes_s: float, read_bytes_s: float, level: Level) -> None:
    finding = judged_speed(write_bytes_s, read_bytes_s)
    assert finding.level is level
    assert ("local SSD" in finding.do) is (level is Level.WARN)


def test_the_command_leaves_only_the_layout_in_the_cache_directory(command: Command) -> None:
    command.cache_dir.mkdir()
    status, _ = findings(command)
    assert status == 0
    assert {path.name for path in command.cache_dir.iterdir()} <= {"outrider-cache", "v2", "tmp"}
    assert not list((command.cache_dir / "tmp").iterdir())


def test_for_people_each_finding_is_a_line_with_its_remedy_under_it(command: Command) -> None:
    command.without("AWS_ENDPOINT_URL")
    lines = command.run("doctor").stdout.splitlines()
    assert lines[0].startswith("ok    settings ")
    assert lines[-2].startswith("warn  job ")
    assert lines[-1].strip().startswith("-> For the job: export AWS_ENDPOINT_URL=http://127.0.0.1:")


def test_a_wrong_secret_is_named_as_such(command: Command) -> None:
    command.environ["AWS_SECRET_ACCESS_KEY"] = "not-the-secret"
    status, found = findings(command)
    assert status == 1
    assert found["origin"].level is Level.FAIL
    assert "SignatureDoesNotMatch" in found["origin"].text
    assert "the secret does not belong to this key" in found["origin"].do


def test_certificates_that_cannot_be_read_are_named_as_such(command: Command, tmp_path: Path) -> None:
    command.environ["AWS_CA_BUNDLE"] = str(tmp_path / "nothing.pem")
    status, found = findings(command)
    assert status == 1
    assert found["origin"].text == f"AWS_CA_BUNDLE={tmp_path}/nothing.pem: No such file or directory"
    assert found["origin"].do == "Name a PEM file, or unset it."


@pytest.mark.parametrize("bundle", [False, True], ids=["the system's", "another bundle"])
def test_a_certificate_that_is_not_trusted_is_told_with_the_variable_to_set(
    command: Command, bucket: Bucket, tmp_path: Path, bundle: bool
) -> None:
    if bundle:
        (tmp_path / "other").mkdir()
        command.environ["AWS_CA_BUNDLE"] = str(certify(tmp_path / "other").authority)
    with TlsFront(("127.0.0.1", int(bucket.address.rpartition(":")[2])), certify(tmp_path)) as front:
        status, found = findings(command, "--origin", front.endpoint)
    assert (status, found["origin"].level) == (1, Level.FAIL)
    assert "certificate" in found["origin"].text
    assert "Set AWS_CA_BUNDLE to a PEM file" in found["origin"].do
    assert (str(tmp_path / "other") in found["origin"].do) is bundle


def test_a_key_that_the_origin_does_not_know_is_named_as_such(command: Command) -> None:
    command.environ["AWS_ACCESS_KEY_ID"] = "NOBODYKNOWSTHISKEY"
    status, found = findings(command)
    assert (status, found["origin"].level) == (1, Level.FAIL)
    assert "does not know this key" in found["origin"].do


def test_no_credentials_are_a_warning_since_buckets_may_be_public(command: Command) -> None:
    command.without("AWS_ACCESS_KEY_ID")
    body = b"<Error><Code>AccessDenied</Code></Error>"
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    with Recorder(lambda _: refusal) as private:
        _, found = findings(command, "--origin", private.endpoint)
    assert found["credentials"].level is found["origin"].level is Level.WARN
    assert "AWS_PROFILE" in found["credentials"].do


def test_a_missing_profile_is_reported(command: Command) -> None:
    command.without("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION")
    command.environ["AWS_PROFILE"] = "nobody"
    status, found = findings(command)
    assert (status, found["credentials"].level) == (1, Level.FAIL)
    assert "nobody" in found["credentials"].text


def test_the_command_checks_the_origin_that_a_proxy_would_find(
    command: Command, bucket: Bucket, tmp_path: Path
) -> None:
    command.without("OUTRIDER_ORIGIN")
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = {bucket.endpoint}\n")
    command.environ["AWS_CONFIG_FILE"] = str(config)
    _, found = findings(command)
    assert found["origin"].level is Level.OK
    assert bucket.endpoint in found["origin"].text


def test_an_origin_that_refuses_connections(command: Command) -> None:
    (port,) = free_ports(1)
    status, found = findings(command, "--origin", f"http://127.0.0.1:{port}")
    assert status == 1
    assert found["network"].level is found["origin"].level is Level.FAIL
    assert "clock" not in found


def test_an_origin_without_a_name_in_the_dns(command: Command) -> None:
    status, found = findings(command, "--origin", "http://no-such-host.invalid")
    assert (status, found["network"].level) == (1, Level.FAIL)
    assert "no such name" in found["network"].text


def test_an_origin_behind_an_http_proxy_need_not_resolve_here(command: Command, bucket: Bucket) -> None:
    command.environ |= {"OUTRIDER_ORIGIN": "http://nowhere.invalid", "HTTP_PROXY": bucket.endpoint}
    _, found = findings(command)
    assert (found["network"].level, found["origin"].level) == (Level.OK, Level.OK)


def test_a_port_that_another_program_has(command: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, found = findings(command, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert (status, found["listen"].level) == (1, Level.FAIL)
    assert "another address with --listen" in found["listen"].do


def test_an_outrider_that_runs_already_is_no_fault(command: Command, bucket: Bucket) -> None:
    listen, admin = command.environ["OUTRIDER_LISTEN"], command.environ["OUTRIDER_ADMIN"]
    with ServedProxy(bucket, command.cache_dir.parent, listen=listen, admin=admin):
        status, found = findings(command)
        assert status == 0
        assert all("listens there already" in found[name].text for name in ("listen", "admin"))
        assert "in use by the outrider that runs here" in found["cache dir"].text
        other = findings(command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert (other[0], other[1]["cache dir"].level) == (1, Level.FAIL)
    assert "give each its own --cache-dir" in other[1]["cache dir"].do


def test_a_directory_that_cannot_be_made(command: Command) -> None:
    command.cache_dir.write_text("a file stands here")
    status, found = findings(command)
    assert (status, found["cache dir"].level) == (1, Level.FAIL)


@pytest.mark.parametrize(
    ("offset_s", "level"), [(-3600, Level.FAIL), (3600, Level.FAIL), (600, Level.WARN), (60, Level.OK)]
)
def test_a_clock_that_is_not_the_origins(command: Command, offset_s: float, level: Level) -> None:
    with origin_of_another_time(offset_s) as origin:
        status, found = findings(command, "--origin", origin)
    assert found["clock"].level is level
    assert status == (1 if level is Level.FAIL else 0)
    if level is not Level.OK:
        assert "chrony" in found["clock"].do


def test_a_bucket_is_no_part_of_a_proxys_address(command: Command) -> None:
    done = command.run("doctor", "--endpoint", "http://127.0.0.1:1/train")
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be http://HOST:PORT" in " ".join(done.stderr.split())


def test_wrong_settings_end_with_status_2(command: Command) -> None:
    done = command.run("doctor", "--listen", "0.0.0.0:9480")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--auth sigv4" in done.stderr


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
    assert "not ready" in done.stderr


def answer(status: int, body: str = "", date: str | None = None, server: str = "") -> OriginAnswer:
    return OriginAnswer(status, body, date, 1000.0, 1000.2, server)


LISTED = '<?xml version="1.0"?><ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>'


def refused(code: str, *, status: int = 403, server: str = "outrider") -> OriginAnswer:
    return answer(status, f"<Error><Code>{code}</Code></Error>", server=server)


@pytest.mark.parametrize(
    ("told", "keys", "level", "do"),
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
    told: OriginAnswer, keys: Credentials | None, level: Level, do: str
) -> None:
    found = check_proxy(told, "http://outrider.training.svc:9480", keys)
    assert found.level is level
    assert do in found.do
    assert bool(do) == bool(found.do)


async def test_an_address_where_nothing_listens_is_told_with_the_way_to_find_out_why() -> None:
    [port] = free_ports(1)
    *_, found = [each async for each in endpoint_findings(f"http://127.0.0.1:{port}")]
    assert (found.name, found.level) == ("endpoint", Level.FAIL)
    assert "kubectl describe daemonset" in found.do


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


@pytest.mark.parametrize("date", [None, "yesterday", "Sat, 99 Nov 2026 05:00:00 GMT"])
def test_an_origin_without_a_date_header(date: str | None) -> None:
    assert check_clock(answer(200, date=date)).level is Level.WARN


def test_an_origin_with_our_time_agrees() -> None:
    assert check_clock(answer(200, date=formatdate(1000, usegmt=True))).text == "agrees with the origin's"


@pytest.mark.parametrize(("key", "shown"), [("AKIAIOSFODNN7EXAMPLE", "AKIA...MPLE"), ("minio", "mi...")])
def test_a_key_is_shown_by_its_first_and_last_letters(key: str, shown: str) -> None:
    assert masked(key) == shown


@pytest.mark.parametrize(
    ("environ", "level", "says"),
    [
        ({"AWS_ENDPOINT_URL": OURS}, Level.OK, OURS),
        ({"AWS_ENDPOINT_URL": f"{OURS}/"}, Level.OK, OURS),
        ({"AWS_ENDPOINT_URL": "http://localhost:9480"}, Level.OK, OURS),
        ({"AWS_ENDPOINT_URL": "http://a:1", "OUTRIDER_STATUS_URL": "http://a:2"}, Level.OK, "of `outrider run`"),
        ({}, Level.WARN, "not set"),
        ({"AWS_ENDPOINT_URL": OURS, "AWS_ENDPOINT_URL_S3": "http://minio"}, Level.WARN, "AWS_ENDPOINT_URL_S3 is"),
        ({"AWS_ENDPOINT_URL": OURS, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, Level.WARN, "not looked at"),
    ],
)
def test_the_jobs_endpoint(environ: dict[str, str], level: Level, says: str) -> None:
    found = check_endpoint(OURS, environ)
    assert found.level is level
    assert says in found.text


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


def test_a_low_limit_of_open_files_is_reported() -> None:
    assert check_open_files(1024).level is Level.WARN
    assert check_open_files(65536).level is Level.OK


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ({"cache_size": "1MiB"}, Level.FAIL),
        ({"cache_size": "900TiB"}, Level.WARN),
        ({"min_free": "100%"}, Level.FAIL),
        ({"cache_size": "15MiB", "min_free": "0"}, Level.FAIL),
        ({"cache_size": "31MiB", "min_free": "0"}, Level.WARN),
        ({"cache_size": "64MiB", "min_free": "0"}, Level.OK),
    ],
)
def test_the_room_for_the_cache(tmp_path: Path, flags: dict[str, str], level: Level) -> None:
    assert check_room(load(flags, environ={}), tmp_path, 0).level is level


@contextmanager
def origin_of_another_time(offset_s: float) -> Iterator[str]:
    """An HTTP server that lists no buckets and has a clock of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<ListAllMyBucketsResult/>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time.time() + offset_s, usegmt=True)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
