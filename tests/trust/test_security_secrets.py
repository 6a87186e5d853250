"""Secrets in outputs: failing requests are sent with real secrets, and no output of the proxy contains one.

The outputs are logs, replies, metrics, status, crash reports and the process list. Files in the cache directory are
readable for the proxy's user only.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest

from outrider import settings
from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.settings import SettingsError
from tests.support import forkserver
from tests.support.conditions import Fault, FaultKind
from tests.support.proxy import Proxy, ServedProxy, s3_client, serving_environment
from tests.support.rawhttp import RawConnection, ask
from tests.support.signed_requests import SIGNED_TRAILER, Chunked, checksum, chunk_signing, signed_head
from tests.support.tenants import CLIENTS, NAME, NOBODY, OTHER, TEAM

if TYPE_CHECKING:
    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator
    from tests.support.trials import Trials

ADMIN_TOKEN = "adm1n-t0ken/8d1f+77=c2"
ORIGIN_SECRET = "0rig1n/s3cret+of=the/proxy/5b1e"
ORIGIN_TOKEN = "0rig1n-sess1on+token=/" + "x9y8" * 20
PASSWORD = "url-p4ssw0rd-4a4a"
SECRETS = [TEAM[1], OTHER[1], NOBODY[1], ADMIN_TOKEN, ORIGIN_SECRET, ORIGIN_TOKEN, PASSWORD]


def forms_of(secret: str) -> list[bytes]:
    """The secret as it is, escaped, in JSON and in base64."""
    raw = secret.encode()
    return [
        raw,
        quote(secret, safe="").encode(),
        json.dumps(secret)[1:-1].encode(),
        base64.b64encode(raw),
        repr(secret)[1:-1].encode(),
    ]


def assert_silent(*outputs: bytes, more: tuple[str, ...] = ()) -> None:
    for output in outputs:
        for secret in (*SECRETS, *more):
            for form in forms_of(secret):
                at = output.find(form)
                assert at < 0, output[max(0, at - 200) : at + 40]


def talk(address: tuple[str, int], data: bytes) -> bytes:
    """All bytes that come back."""
    with RawConnection(address) as connection:
        connection.send(data)
        received = b""
        try:
            while piece := connection.sock.recv(65536):
                received += piece
        except (ConnectionError, TimeoutError):
            pass
    return received


def signed(endpoint: str, keys: tuple[str, str], method: str, target: str, *more: str, body: bytes = b"") -> bytes:
    head = signed_head(method, endpoint, target, keys)
    lines = "".join(f"{name}: {value}\r\n" for name, value in head)
    lines += "".join(f"{line}\r\n" for line in more)
    return f"{method} {target} HTTP/1.1\r\nconnection: close\r\n{lines}\r\n".encode() + body


@pytest.fixture(scope="module", autouse=True)
def home(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="team/a", Body=b"a" * 1000)
    client.close()


def walk(endpoint: str, address: tuple[str, int]) -> tuple[list[bytes], list[str]]:
    """The replies on each failing path, and the signatures and URLs that were sent on them."""
    client = s3_client(endpoint, TEAM, signature_version="s3v4")
    old = s3_client(endpoint, TEAM, signature_version="s3")
    urls = [
        maker.generate_presigned_url("get_object", Params={"Bucket": NAME, "Key": "team/a"}) for maker in (client, old)
    ]
    client.close()
    old.close()
    targets = [f"{url.path}?{url.query}" for url in map(urlsplit, urls)]
    upload = Chunked(b"body", SIGNED_TRAILER, ("x-amz-checksum-crc32", checksum("crc32", b"other")))
    head = signed_head("PUT", endpoint, f"/{NAME}/team/c", TEAM, upload.headers(), upload.form)
    chunks = upload.encode(chunk_signing(head, TEAM[1]))
    lines = "".join(f"{name}: {value}\r\n" for name, value in [*head, ("content-length", str(len(chunks)))])
    host = f"host: {endpoint.partition('//')[2]}\r\nconnection: close\r\n"
    sent = [
        *(
            signed(endpoint, keys, method, f"/{NAME}/{key}")
            for keys in (TEAM, OTHER, NOBODY, (TEAM[0], OTHER[1]), ("UNKNOWN", TEAM[1]))
            for method in ("GET", "HEAD", "DELETE")
            for key in ("team/nothing", "other/a")
        ),
        signed(endpoint, TEAM, "GET", f"/{NAME}/team/a", "x-amz-acl: private"),
        signed(endpoint, TEAM, "GET", f"/{NAME}/team/a", "authorization: Bearer x"),
        signed(endpoint, TEAM, "GET", f"/{NAME}/team/a").replace(b"Signature=", b"Signature=\xff"),
        signed(endpoint, TEAM, "GET", f"/{NAME}/team/a").replace(b"Credential=", b"Credential"),
        signed(endpoint, TEAM, "GET", f"/{NAME}/team/a").replace(b"\r\n\r\n", b"\r\nbroken header\r\n\r\n"),
        signed(endpoint, TEAM, "PUT", f"/{NAME}/team/b", "content-length: 100", body=b"short"),
        signed(endpoint, TEAM, "PUT", "/_outrider/plan/x", "content-length: 3", body=b"{x}"),
        *(
            f"GET {target}{more} HTTP/1.1\r\n{host}\r\n".encode()
            for target in targets
            for more in ("", "&acl", "0", "%ff")
        ),
        *(f"GET {target.replace('Expires=', 'Expires=-')} HTTP/1.1\r\n{host}\r\n".encode() for target in targets),
        f"PUT /{NAME}/team/c HTTP/1.1\r\nconnection: close\r\n{lines}\r\n".encode() + chunks,
        f"POST /{NAME} HTTP/1.1\r\n{host}"
        "content-type: multipart/form-data; boundary=b\r\ncontent-length: 9\r\n\r\n".encode()
        + b"--b\r\nx\r\n\r\n",
    ]
    secrets_sent = [target.partition("Signature=")[2].partition("&")[0] for target in targets]
    return [talk(address, data) for data in sent], secrets_sent


def admin_outputs(address: tuple[str, int]) -> list[bytes]:
    good = ("authorization", f"Bearer {ADMIN_TOKEN}")
    answers = [
        ask(address, "GET", path, [header])
        for path in ("/metrics", "/status", "/healthz", "/nothing")
        for header in (good, ("authorization", "Bearer wrong"), ("authorization", ADMIN_TOKEN + "x"), ("x", "y"))
    ]
    return [str(answer.headers).encode() + answer.body for answer in answers]


def test_an_admin_token_in_an_unknown_encoding_is_refused(bucket: Bucket) -> None:
    with Proxy(bucket, admin_token=ADMIN_TOKEN) as proxy:
        host, _, port = proxy.outrider.admin.rpartition(":")
        for token in (b"\xff\xfe", b"Bearer \xff", b"Bearer " + ADMIN_TOKEN.encode() + b"\xe9", b"Bearer", b""):
            data = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: " + token + b"\r\n\r\n"
            assert talk((host, int(port)), data).startswith(b"HTTP/1.1 401 ")


def environment_of(bucket: Bucket) -> dict[str, str]:
    return {
        **serving_environment(bucket),
        "OUTRIDER_ADMIN_TOKEN": ADMIN_TOKEN,
        "OUTRIDER_CLIENT_TIMEOUT_S": "0.5",
    }


@pytest.mark.parametrize(
    ("origin", "end"), [("alive", signal.SIGABRT), ("refuses", signal.SIGTERM), ("gone", signal.SIGTERM)]
)
def test_no_output_contains_a_secret_on_any_failing_path(
    bucket: Bucket, tmp_path: Path, origin: str, end: signal.Signals, trials: Trials
) -> None:
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    endpoint = bucket.endpoint if origin != "gone" else "http://127.0.0.1:9"
    flags = {"auth": "sigv4", "clients": str(clients), "log_level": "debug"}
    served = ServedProxy(bucket, tmp_path, origin=endpoint, **flags)
    served.environment = {**environment_of(bucket), "OUTRIDER_ORIGIN_PATIENCE_S": "0.1"}
    if end is signal.SIGABRT:
        # Its command line is examined, and its crash report. For the others a fork does: no new interpreter starts.
        served.forked = False
        served.environment["PYTHONFAULTHANDLER"] = "1"
    if origin == "refuses":
        served.environment |= {"AWS_SECRET_ACCESS_KEY": ORIGIN_SECRET, "AWS_SESSION_TOKEN": ORIGIN_TOKEN}
    with served:
        answers, sent = walk(served.endpoint, served.address)
        host, _, port = served.ready_line["admin"].rpartition(":")
        answers += admin_outputs((host, int(port)))
        cmdline = Path(f"/proc/{served.pid}/cmdline").read_bytes()
        served.send(end)
        served.wait()
    log = served.log.read_bytes()
    assert log.count(b'"event": "request"') > 30, "the log was not read"
    if end is signal.SIGABRT:
        assert b"Fatal Python error" in log, "the crash report was not read"
    assert_silent(*answers, log, cmdline, more=(bucket.secret_key,))
    for signature in sent:
        assert signature
        assert signature.encode() not in log
    assert b"AWS4-HMAC-SHA256 " not in log
    trials.record(
        "security", f"secrets searched for in all output, origin {origin}", "none found", times=len(answers) + 2
    )


def test_the_origins_refusal_of_a_fill_is_not_logged(bucket: Bucket, simulator: Simulator, tmp_path: Path) -> None:
    """In such a refusal AWS quotes the signed text, and for an expired token the token itself."""
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="team/large", Body=bytes(400_000))
    client.close()
    code = f"ExpiredToken</Code><Token-0>{ORIGIN_TOKEN}</Token-0><Code>"
    served = ServedProxy(bucket, tmp_path, simulator.endpoint, block_size="64KiB", log_level="debug")
    with served:
        simulator.conditions.faults = [
            # Without If-Match as well: where only that is refused, the bucket is asked without it.
            Fault(
                FaultKind.STATUS,
                times=None,
                status=400,
                code=code,
                when=lambda request: not request.headers.get("range", "bytes=0-").startswith("bytes=0-"),
            )
        ]
        talk(
            served.address, f"GET /{NAME}/team/large HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode()
        )
        served.settle()
        refused = [line["error"] for line in served.lines("fill failed")]
    assert refused
    assert all("400" in error for error in refused)
    assert_silent(served.log.read_bytes())


SIGNED = f"PUT\n/team/a\n\nx-amz-security-token:{ORIGIN_TOKEN}\n\nx-amz-security-token\nUNSIGNED-PAYLOAD"
REFUSALS = {
    "ExpiredToken": {"Token-0": ORIGIN_TOKEN},
    "InvalidToken": {"Token-0": ORIGIN_TOKEN},
    "InvalidAccessKeyId": {"AWSAccessKeyId": "ASIAOFTHEPROXY"},
    "SignatureDoesNotMatch": {
        "AWSAccessKeyId": "ASIAOFTHEPROXY",
        "StringToSign": "AWS4-HMAC-SHA256\n20260101T000000Z\nscope\ndigest",
        "SignatureProvided": "5161",
        "StringToSignBytes": "41 57 53",
        "CanonicalRequest": SIGNED,
        "CanonicalRequestBytes": SIGNED.encode().hex(" "),
    },
}


@pytest.mark.parametrize("code", REFUSALS)
def test_details_of_a_refusal_that_concern_the_signer_do_not_reach_the_client(
    bucket: Bucket, simulator: Simulator, code: str
) -> None:
    more = "".join(f"<{name}>{value}</{name}>" for name, value in REFUSALS[code].items())
    # The text between the fault's error code tags carries further elements.
    fault = Fault(FaultKind.STATUS, None, None, status=400, code=f"{code}</Code>{more}<Code>{code}")
    with Proxy(bucket, simulator.endpoint) as proxy:
        simulator.conditions.faults = [fault]
        targets = f"/{NAME}/team/a", f"/{NAME}/team/a?acl", f"/{NAME}?list-type=2"
        for method, target in product(("GET", "HEAD", "PUT", "DELETE"), targets):
            length = [("content-length", "1")] if method == "PUT" else []
            answer = ask(proxy.address, method, target, length, b"x" if length else b"")
            assert answer.status == 400
            assert_silent(answer.body, more=tuple(REFUSALS[code].values()))
            if method != "HEAD":
                assert answer.code == code
                assert answer.headers["content-length"] == str(len(answer.body))
                assert answer.body.endswith(b"<RequestId>SIMULATED</RequestId></Error>")


WRONG = {
    "a client without grants that parse": CLIENTS.replace('access = "write"', 'access = "own"'),
    "a secret that is no text": f"[[client]]\naccess_key = 'a'\nsecret_key = ['{TEAM[1]}']\n",
    "a field too many": f"[[client]]\naccess_key = 'a'\nsecret_key = '{TEAM[1]}'\npassword = '{PASSWORD}'\n",
    "no access key": f"[[client]]\nsecret_key = '{TEAM[1]}'\n",
    "a key twice": CLIENTS + CLIENTS,
    "no TOML at the secret": f"[[client]]\naccess_key = 'a'\nsecret_key = {TEAM[1]}\n",
    "no TOML after it": f"[[client]]\naccess_key = 'a'\nsecret_key = '{TEAM[1]}'\n]]\n",
    "no table": f"client = '{TEAM[1]}'\n",
}


def run_serve(bucket: Bucket, tmp_path: Path, *flags: str, **environment: str) -> tuple[int, bytes]:
    ports = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    argv = [sys.executable, "-m", "outrider", "serve", "--cache-dir", str(tmp_path / "c"), *ports, *flags]
    done = forkserver.run(argv, env=serving_environment(bucket) | environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("case", WRONG)
def test_an_error_in_the_clients_file_is_reported_without_its_contents(tmp_path: Path, case: str) -> None:
    clients = tmp_path / "clients.toml"
    clients.write_text(WRONG[case])
    with pytest.raises(SettingsError, match=r"clients\.toml") as wrong:
        settings.load({"auth": "sigv4", "clients": str(clients)}, environ={})
    assert_silent(str(wrong.value).encode())


def test_errors_in_settings_are_reported_without_their_secrets(bucket: Bucket, tmp_path: Path) -> None:
    config = tmp_path / "outrider.toml"
    config.write_text(f"admin_token = ['{ADMIN_TOKEN}']\n")
    for flags, environment in [
        (("--config", str(config)), {}),
        (("--origin", f"http://:{PASSWORD}@127.0.0.1:9"), {}),
        ((), {"OUTRIDER_ORIGIN": f"ftp://user:{PASSWORD}@h"}),
    ]:
        code, output = run_serve(bucket, tmp_path, *flags, **environment)
        assert code == 2, output
        assert_silent(output)


def test_a_failing_credential_source_is_reported_to_the_operator_alone(bucket: Bucket, tmp_path: Path) -> None:
    """No client learns the output of a credential process, or the requested role."""
    config = tmp_path / "aws"
    config.write_text("[default]\ncredential_process = /bin/sh -c 'echo detail-of-the-house >&2; exit 3'\n")
    served = ServedProxy(bucket, tmp_path)
    served.environment = {
        **{name: value for name, value in served.environment.items() if not name.startswith("AWS_")},
        "AWS_CONFIG_FILE": str(config),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    }
    with served:
        answer = ask(served.address, "PUT", f"/{NAME}/x", [("content-length", "0")])
        assert answer.code == "ServiceUnavailable"
        assert b"detail-of-the-house" not in answer.body
    assert "detail-of-the-house" in served.log.read_text()


def test_files_on_disk_are_readable_for_no_other_user(bucket: Bucket, tmp_path: Path, trials: Trials) -> None:
    """Blocks hold objects, and the index holds their names. Their modes are right for any umask and for any owner of
    the directory."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o777)
    for folder in ("v2", "tmp"):
        (cache / folder).mkdir()
        (cache / folder).chmod(0o777)
    before = os.umask(0)
    try:
        with Proxy(bucket, cache_dir=str(cache), prefetch="epoch") as proxy:
            ask(proxy.address, "GET", f"/{NAME}/team/a")
            proxy.settle()
            proxy.stop()
            found = [path for path in cache.rglob("*") if path != cache]
            assert {path.name for path in found} >= {"index", "orders", "outrider-cache", "v2", "tmp"}
            assert any(path.is_file() and path.is_relative_to(cache / "v2") for path in found)
            for path in found:
                mode = stat.S_IMODE(path.lstat().st_mode)
                if path.is_file():
                    assert mode == 0o600, f"{path}: {mode:o}"
                elif path.parent == cache:
                    assert mode == 0o700, f"{path}: {mode:o}"
    finally:
        os.umask(before)
    trials.record("security", "files of the cache directory that others may open", "none")


def test_a_cache_directory_of_links_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    cache, victim = tmp_path / "cache", tmp_path / "victim"
    cache.mkdir()
    victim.mkdir()
    (cache / "v2").symlink_to(victim)
    with pytest.raises(UnusableCacheDir, match="link"), Proxy(bucket, cache_dir=str(cache)):
        pass
