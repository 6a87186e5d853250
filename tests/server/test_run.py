"""`outrider run` with a real child before a real bucket: environment, signals, exit status and the summary."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import pytest

from outrider.adapters.process.system import new_event_loop
from outrider.cli.aws_environment import endpoint_in
from outrider.cli.load_settings import leads_to
from outrider.cli.run.child_environment import for_child
from outrider.cli.run.child_process import Signals, ended, start, status_of
from outrider.cli.run.summary import Summary
from outrider.core.text import in_words
from tests.support.bucket import REGION
from tests.support.child import free_ports
from tests.support.proxy import DEADLINE_S, Command, Process, ServedProxy, python
from tests.support.rawhttp import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
# 251 is prime, so bytes shifted by any power of two show.
RAMP = (bytes(range(251)) * (3 * MIB // 251 + 1))[: 3 * MIB]

SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
READ = """
import sys, hashlib, urllib.request, os
for _ in range(int(sys.argv[1])):
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + "/run/ramp") as reply:
        print(hashlib.sha256(reply.read()).hexdigest(), reply.headers["x-cache"])
"""
READ_BY_BOTO = """
import boto3
client = boto3.client("s3")
print(len(client.get_object(Bucket="run", Key="ramp")["Body"].read()))
client.close()
"""
# Prints when it can take signals, records each, and ends at SIGTERM with status 5. It uses os.write, since a signal may
# come while the first line is written, and print is not reentrant. It waits on a pipe: a signal between a look and
# signal.pause() would be recorded with the next one.
NOTE_SIGNALS = """
import os, signal, sys
def note(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(5)
for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTERM"):
    signal.signal(getattr(signal, name), note)
came, comes = os.pipe()
os.set_blocking(comes, False)
signal.set_wakeup_fd(comes)
os.write(1, b"up\\n")
while True:
    os.read(came, 1)
"""


@pytest.fixture
def command(bucket: Bucket, tmp_path: Path) -> Command:
    made = Command(bucket, tmp_path)
    made.environ["OUTRIDER_ORIGIN"] = bucket.endpoint
    return made


@pytest.fixture(scope="module", autouse=True)
def ramp(bucket: Bucket) -> None:
    client = bucket.client()
    client.put_object(Bucket=bucket.make_bucket("run"), Key="ramp", Body=RAMP)
    client.close()


def environment_of_child(command: Command, *flags: str) -> dict[str, str]:
    done = command.run("run", *flags, "--", *python(SHOW_ENVIRONMENT))
    assert done.returncode == 0, done.stderr
    environment = json.loads(done.stdout)
    assert isinstance(environment, dict)
    return environment


def test_the_child_gets_the_endpoint_in_every_variable_that_tools_read(command: Command) -> None:
    environment = environment_of_child(command)
    endpoint = environment["AWS_ENDPOINT_URL"]
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", endpoint)
    assert environment["AWS_ENDPOINT_URL_S3"] == environment["S3_ENDPOINT_URL"] == endpoint
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9][0-9]*", environment["OUTRIDER_STATUS_URL"])
    assert environment["OUTRIDER_STATUS_URL"] != endpoint


def test_the_child_keeps_its_own_credentials(command: Command, bucket: Bucket) -> None:
    environment = environment_of_child(command)
    assert (environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]) == (
        bucket.access_key,
        bucket.secret_key,
    )


def test_a_child_without_credentials_gets_placeholder_keys(command: Command) -> None:
    command.without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environment = environment_of_child(command)
    assert environment["AWS_ACCESS_KEY_ID"] == environment["AWS_SECRET_ACCESS_KEY"] == "outrider-accepts-any"


def test_a_requested_port_is_used(command: Command) -> None:
    (port,) = free_ports(1)
    environment = environment_of_child(command, "--listen", f"127.0.0.1:{port}")
    assert environment["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{port}"


def test_an_address_in_the_environment_is_used_too(command: Command) -> None:
    (port,) = free_ports(1)
    command.environ["OUTRIDER_LISTEN"] = f"127.0.0.1:{port}"
    assert environment_of_child(command)["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "ignoring",
    [
        {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
        {"AWS_PROFILE": "own"},
        {"AWS_PROFILE": "own", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"},
    ],
)
def test_a_child_told_to_ignore_endpoints_gets_the_endpoint_all_the_same(
    ignoring: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[profile own]\nignore_configured_endpoint_urls = true\n")
    environ = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_ENDPOINT_URL": "http://elsewhere", **ignoring}
    child = for_child(environ, endpoint="http://e", admin="http://a", region=None, needs_keys=False)
    assert endpoint_in(environ) is None
    assert endpoint_in(child) == ("AWS_ENDPOINT_URL_S3", "http://e")
    seen = subprocess.run(
        [sys.executable, "-c", "import boto3; print(boto3.client('s3', region_name='r').meta.endpoint_url)"],
        env={**os.environ, **child}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert seen.stdout.strip() == "http://e"


def test_a_variable_wins_over_a_profile_that_ignores_endpoints(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("[default]\nignore_configured_endpoint_urls = true\n")
    environ = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_ENDPOINT_URL": "http://elsewhere"}
    assert endpoint_in(environ) is None
    environ["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "false"
    assert endpoint_in(environ) == ("AWS_ENDPOINT_URL", "http://elsewhere")


def test_loopback_is_kept_from_an_http_proxy() -> None:
    environ = {"http_proxy": "http://corporate:3128", "NO_PROXY": "internal, 127.0.0.1"}
    child = for_child(environ, endpoint="http://e", admin="http://a", region=None, needs_keys=False)
    assert child["no_proxy"] == child["NO_PROXY"] == "internal,127.0.0.1,localhost"
    environ = {"http_proxy": "http://web", "no_proxy": "*"}
    child = for_child(environ, endpoint="http://e", admin="http://a", region=None, needs_keys=False)
    assert child["no_proxy"] == child["NO_PROXY"] == "*", "a star beside other hosts would have no effect"
    assert "NO_PROXY" not in for_child({}, endpoint="http://e", admin="http://a", region=None, needs_keys=False)


@pytest.mark.parametrize(
    ("environ", "region", "sts"),
    [
        ({}, "eu-west-1", "https://sts.eu-west-1.amazonaws.com"),
        ({}, "cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn"),
        ({"AWS_ENDPOINT_URL": "http://minio"}, None, "http://minio"),
        ({"AWS_ENDPOINT_URL_STS": "http://sts"}, None, "http://sts"),
    ],
)
def test_a_child_with_a_role_requests_it_from_its_own_endpoint(
    environ: dict[str, str], region: str | None, sts: str
) -> None:
    child = for_child(environ, endpoint="http://e", admin="http://a", region=region, needs_keys=False)
    assert child["AWS_ENDPOINT_URL_STS"] == sts


def test_a_child_with_a_single_sign_on_requests_it_from_its_own_endpoint(tmp_path: Path) -> None:
    names = ("AWS_ENDPOINT_URL_SSO", "AWS_ENDPOINT_URL_SSO_OIDC")

    def endpoints_of(environ: dict[str, str], region: str | None) -> list[str | None]:
        child = for_child(environ, endpoint="http://e", admin="http://a", region=region, needs_keys=False)
        return [child.get(name) for name in names]

    aws = "eu-west-1.amazonaws.com"
    assert endpoints_of({}, "eu-west-1") == [f"https://portal.sso.{aws}", f"https://oidc.{aws}"]
    assert endpoints_of({"AWS_ENDPOINT_URL": "http://minio"}, None) == ["http://minio", "http://minio"]
    config = tmp_path / "config"
    config.write_text("[profile dev]\nsso_session = corp\n[sso-session corp]\nsso_region = us-west-2\n")
    profile = {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "dev"}
    assert endpoints_of(profile, "eu-west-1")[0] == "https://portal.sso.us-west-2.amazonaws.com"
    assert endpoints_of(dict.fromkeys(names, "http://sso"), "eu-west-1") == ["http://sso", "http://sso"]


@pytest.mark.parametrize(
    ("endpoint", "environ", "allowed"),
    [("http://e", {}, "true"), ("http://e", {"AWS_ALLOW_HTTP": "false"}, "false"), ("https://e", {}, None)],
)
def test_a_child_that_refuses_http_accepts_the_proxys_endpoint(
    endpoint: str, environ: dict[str, str], allowed: str | None
) -> None:
    child = for_child(environ, endpoint=endpoint, admin="http://a", region=None, needs_keys=False)
    assert child.get("AWS_ALLOW_HTTP") == allowed


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_in_the_commands_own_environment_is_the_origin(
    command: Command, bucket: Bucket, name: str
) -> None:
    command.without("OUTRIDER_ORIGIN")
    command.environ[name] = bucket.endpoint
    done = command.run("run", "--", *python(READ_BY_BOTO))
    assert (done.returncode, done.stdout) == (0, f"{len(RAMP)}\n"), done.stderr
    assert f"the bucket is at {bucket.endpoint}, as {name} says" in done.stderr


def test_the_endpoint_of_the_aws_profile_is_the_origin(command: Command, bucket: Bucket, tmp_path: Path) -> None:
    command.without("OUTRIDER_ORIGIN")
    config = tmp_path / "config"
    config.write_text(f"[profile lab]\nendpoint_url = {bucket.endpoint}\n")
    command.environ |= {"AWS_CONFIG_FILE": str(config), "AWS_PROFILE": "lab", **bucket.environment()}
    done = command.run("run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert f"the bucket is at {bucket.endpoint}, as endpoint_url of the AWS profile says" in done.stderr


def test_the_profiles_endpoint_of_s3_alone_wins_over_the_one_for_all_services(
    command: Command, bucket: Bucket, tmp_path: Path
) -> None:
    command.without("OUTRIDER_ORIGIN")
    config = tmp_path / "config"
    config.write_text(
        "[default]\nendpoint_url = http://127.0.0.1:1\nservices = lab\n"
        f"[services lab]\nsts =\n  endpoint_url = http://127.0.0.1:2\ns3 =\n  endpoint_url = {bucket.endpoint}\n"
    )
    command.environ |= {"AWS_CONFIG_FILE": str(config), **bucket.environment()}
    done = command.run("run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert f"the bucket is at {bucket.endpoint}, as endpoint_url of S3 in the AWS profile's services" in done.stderr


def serving(bucket: Bucket, directory: Path, **environ: str) -> ServedProxy:
    """`outrider serve` on a port that is known before, with a profile that names the bucket, and without --origin."""
    (port,) = free_ports(1)
    served = ServedProxy(bucket, directory, listen=f"127.0.0.1:{port}")
    at = served.argv.index("--origin")
    del served.argv[at : at + 2]
    config = directory / "config"
    config.write_text(f"[profile lab]\nendpoint_url = {bucket.endpoint}\n"
                      f"[profile own]\nendpoint_url = http://localhost:{port}\n")  # fmt: skip
    named = {name: value.format(port=port) for name, value in environ.items()}
    served.environment |= {"AWS_CONFIG_FILE": str(config), **named}
    return served


@pytest.mark.parametrize("environ", [{}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:{port}"}])
def test_serve_finds_the_origin_in_the_profile_too(bucket: Bucket, tmp_path: Path, environ: dict[str, str]) -> None:
    with serving(bucket, tmp_path, AWS_PROFILE="lab", **environ) as served:
        assert served.ready_line["origin"] == bucket.endpoint
        assert served.lines("origin found")[0]["named_by"] == "endpoint_url of the AWS profile"
        assert ask(served.address, "GET", "/run/ramp").body == RAMP


def test_serve_finds_the_origin_in_its_environment_too(bucket: Bucket, tmp_path: Path) -> None:
    with serving(bucket, tmp_path, AWS_PROFILE="own", AWS_ENDPOINT_URL_S3=bucket.endpoint) as served:
        assert served.ready_line["origin"] == bucket.endpoint
        assert served.lines("origin found")[0]["named_by"] == "AWS_ENDPOINT_URL_S3"


def test_serve_is_not_its_own_origin_when_started_with_its_clients_environment(bucket: Bucket, tmp_path: Path) -> None:
    with serving(bucket, tmp_path, AWS_PROFILE="own", AWS_ENDPOINT_URL="http://127.0.0.1:{port}") as served:
        assert served.ready_line["origin"] == f"https://s3.{REGION}.amazonaws.com"
        assert not served.lines("origin found")


@pytest.mark.parametrize(
    ("endpoint", "listen", "ours"),
    [
        ("http://127.0.0.1:9480", "127.0.0.1:9480", True),
        ("http://localhost:9480/", "127.0.0.1:9480", True),
        ("http://localhost:9480", "0.0.0.0:9480", True),
        ("http://127.0.0.2:9480", "0.0.0.0:9480", True),
        ("http://127.0.0.2:9480", "127.0.0.1:9480", False),
        ("http://127.0.0.1:9000", "127.0.0.1:9480", False),
        ("http://192.0.2.1:9480", "0.0.0.0:9480", False),
        ("https://127.0.0.1", "127.0.0.1:443", True),
        ("http://[::1:9480", "127.0.0.1:9480", False),
        ("http://nowhere.invalid:9480", "0.0.0.0:9480", False),
        ("9480", "127.0.0.1:9480", False),
    ],
)
def test_addresses_that_lead_back_to_the_proxy(endpoint: str, listen: str, ours: bool) -> None:
    assert leads_to(endpoint, listen) == ours


def test_a_command_that_would_read_from_the_proxy_itself_is_refused(command: Command) -> None:
    command.without("OUTRIDER_ORIGIN")
    (port,) = free_ports(1)
    command.environ["AWS_ENDPOINT_URL"] = f"http://localhost:{port}"
    done = command.run("run", "--listen", f"127.0.0.1:{port}", "--", "true")
    assert done.returncode == 2
    assert "the proxy would ask itself" in done.stderr


def test_a_named_origin_wins_over_the_endpoint_in_the_environment(command: Command) -> None:
    command.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    done = command.run("run", "--", *python(READ_BY_BOTO))
    assert (done.returncode, done.stdout) == (0, f"{len(RAMP)}\n"), done.stderr


@pytest.mark.parametrize("words", [["serve"], ["doctor"], ["run", "--", "true"]], ids=["serve", "doctor", "run"])
def test_a_proxy_that_would_be_its_own_origin_is_refused(words: list[str], command: Command) -> None:
    name, *rest = words
    done = command.run(name, "--origin", "http://127.0.0.1:9480", "--listen", "127.0.0.1:9480", *rest)
    assert done.returncode == 2
    assert "the proxy would ask itself" in done.stderr


def test_an_outrider_runs_in_an_outrider(command: Command) -> None:
    inner = [sys.executable, "-m", "outrider", "run", "--cache-dir", str(command.cache_dir.parent / "inner")]
    command.without("OUTRIDER_ORIGIN")
    command.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    done = command.run("run", "--", *inner, "--", "true")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the bucket is at") == 2


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_the_childs_status_is_the_commands(command: Command, status: int) -> None:
    assert command.run("run", "--", "sh", "-c", f"exit {status}").returncode == status


def test_a_child_killed_by_a_signal_gives_the_status_that_a_shell_gives(command: Command) -> None:
    assert command.run("run", "--", "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


def test_options_after_the_command_are_the_commands_own(command: Command) -> None:
    done = command.run("run", "sh", "-c", 'echo "$0" "$@"', "--help", "--", "--origin")
    assert (done.returncode, done.stdout) == (0, "--help -- --origin\n")


def test_a_missing_command_exits_with_127(command: Command) -> None:
    done = command.run("run", "--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command: command not found" in done.stderr


@pytest.mark.parametrize(
    ("mode", "text", "says"),
    [
        (0o644, "#!/bin/sh\n", "not executable"),
        (0o755, "#!/no/such/interpreter\n", "the interpreter that its first line names does not exist"),
        (0o755, "\x00no program", "cannot be run"),
    ],
)
def test_a_command_that_cannot_be_run_exits_with_126(
    command: Command, tmp_path: Path, mode: int, text: str, says: str
) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(mode)
    done = command.run("run", "--", script)
    assert done.returncode == 126
    assert says in done.stderr


def test_a_directory_that_another_outrider_uses_is_refused_with_what_to_do(command: Command, bucket: Bucket) -> None:
    with ServedProxy(bucket, command.cache_dir.parent):
        done = command.run("run", "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert "another process uses it" in done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH"])
def test_a_signal_sent_to_the_command_reaches_the_child_once(command: Command, name: str) -> None:
    with started(command) as process:
        assert process.stdout is not None
        process.send_signal(getattr(signal, name))
        assert process.stdout.readline() == f"{name}\n"
        process.terminate()
        assert process.communicate(timeout=DEADLINE_S)[0] == "SIGTERM\n"
    assert process.returncode == 5


def test_a_signal_that_was_ignored_at_the_start_stays_ignored_in_the_child(command: Command) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    argv = ["nohup", sys.executable, "-m", "outrider", "run", "--", *python(program)]
    done = subprocess.run(argv, env=command.environ, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == "True\n"


async def test_a_signal_that_comes_before_the_child_starts_is_passed_on_later() -> None:
    signals = Signals()
    signals.install()
    try:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
        while signals.ended_by is None:
            await asyncio.sleep(0)
        assert signals.ended_by is signal.SIGTERM
        child = start(["sleep", "60"], os.environ)
        signals.to(child)
        assert status_of(await ended(child)) == 128 + signal.SIGTERM
    finally:
        signals.remove()


async def test_a_signal_before_the_child_is_known_at_once() -> None:
    """The child may be started before the loop runs on."""
    signals = Signals()
    signals.install()
    try:
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.ended_by is signal.SIGINT
        await signals.ending.wait()
    finally:
        signals.remove()


async def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    signals = Signals()
    signals.install()
    signals.remove()
    assert [signal.getsignal(number) for number in signal.valid_signals()] == before
    # A library that was loaded before Python may have installed one.
    signals.install()
    signals._replaced[signal.SIGUSR2] = None
    signals.remove()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_a_signal_that_comes_with_another_one_is_passed_on_once() -> None:
    sent: list[signal.Signals] = []

    class Child:
        send_signal = sent.append

    async def run() -> None:
        signals = Signals()
        signals.install()
        # The loop sleeps, and has begun to look at one signal when the next one comes.
        before = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        try:
            signals.to(cast("subprocess.Popen[bytes]", Child))
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while not sent:
                await asyncio.sleep(1)
        finally:
            signal.signal(signal.SIGALRM, before)
            signals.remove()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
    assert sent == [signal.SIGTERM]


def test_ctrl_c_of_a_terminal_is_not_delivered_twice(command: Command) -> None:
    master, slave = pty.openpty()
    argv = [sys.executable, "-m", "outrider", "run", "--", *python(NOTE_SIGNALS)]
    with subprocess.Popen(argv, env=command.environ, preexec_fn=lambda: os.login_tty(slave)) as process:
        os.close(slave)
        try:
            seen = read_until(master, "up\r\n")
            os.write(master, b"\x03")
            seen = read_until(master, "SIGINT\r\n")
            # The terminal's SIGINT is handled before this signal, so a second SIGINT would have been recorded by the
            # time the child ends.
            process.terminate()
            seen += read_until(master, "SIGTERM\r\n")
            process.wait(DEADLINE_S)
        finally:
            os.close(master)
    assert seen.count("SIGINT") == 1
    assert process.returncode == 5


def test_the_summary_counts_the_reads(command: Command) -> None:
    # A verification asks for the checksum in the background: one request more, in time or not.
    command.environ["OUTRIDER_VERIFY_ORIGIN"] = "off"
    first = command.run("run", "--summary", "json", "--", *python(READ, "1"))
    summary = json.loads(first.stderr.splitlines()[-1])
    # Bytes that the reader had not taken when the block was whole came from disk.
    from_disk = summary.pop("cached_bytes")
    assert from_disk < len(RAMP)
    assert summary.pop("verdict")["text"] == "too early to say"
    assert summary == {
        "reads": 1, "served_bytes": len(RAMP), "origin_bytes": len(RAMP), "origin_requests": 1,
        "hit_ratio": from_disk / len(RAMP), "saved_bytes": 0, "credentials_refused": None,
    }  # fmt: skip
    again = command.run("run", "--", *python(READ, "3"))
    assert len(set(again.stdout.splitlines())) == 1
    assert again.stdout.endswith(" HIT\n")
    assert again.stderr == "outrider: 3 reads, 100 % from the cache, 0 B from the bucket, 9.4 MB saved\n"


@pytest.mark.parametrize(
    ("form", "stderr"),
    [*(("text", stderr) for stderr in ("2>/dev/full", "2>&-", "<&- 2>&-")), ("json", "2>/dev/full"), ("none", "2>&-")],
)
def test_a_closed_or_full_stderr_does_not_change_a_successful_exit(
    command: Command, bucket: Bucket, form: str, stderr: str
) -> None:
    command.without("OUTRIDER_ORIGIN")
    command.environ["AWS_ENDPOINT_URL"] = bucket.endpoint  # the command logs a line about it before the child starts
    words = (sys.executable, "-m", "outrider", "run", "--summary", form, "--", "echo", "hello")
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {stderr}', "sh", *words], env=command.environ, stdout=subprocess.PIPE, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "hello\n")


def test_the_child_has_inherited_descriptors_and_none_of_the_proxys(command: Command) -> None:
    """As for descriptors that `<(...)` and make's jobserver pass on."""
    reads, writes = os.pipe()
    program = f"import os; print(os.read({reads}, 9)); print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    os.write(writes, b"handed on")
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "run", "--summary", "none", "--", *python(program)], env=command.environ,
        pass_fds=[reads], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    os.close(reads)
    os.close(writes)
    text, has = done.stdout.splitlines()
    assert text == "b'handed on'"
    # The additional descriptor is the directory that it lists.
    assert set(json.loads(has)) <= {0, 1, 2, 3, 4, reads}
    assert len(json.loads(has)) == 5


def test_by_default_the_output_is_the_childs_alone(command: Command) -> None:
    done = command.run("run", "--summary", "none", "--", "echo", "hello")
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_the_log_level_can_still_be_raised(command: Command) -> None:
    done = command.run("run", "--log-level", "info", "--log-format", "json", "--", "true")
    assert '"event": "ready"' in done.stderr


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (Summary(0, 0, 0, 0, 0), "0 reads, nothing served"),
        (Summary(1, 10, 10, 0, 0), "1 read, 100 % from the cache, 0 B from the bucket, 10 B saved"),
        (
            Summary(1204, 14_300_000_000, 12_441_000_000, 1_900_000_000, 9),
            "1,204 reads, 87 % from the cache, 1.9 GB from the bucket, 12.4 GB saved",
        ),
        (Summary(2, 100, 0, 8_000, 1), "2 reads, 0 % from the cache, 8.0 kB from the bucket, 0 B saved"),
    ],
)
def test_the_line_at_the_end(summary: Summary, text: str) -> None:
    assert summary.text() == text


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_999, "1.0 MB"), (99_400, "99.4 kB"), (123_456_789, "123 MB")],
)
def test_sizes_in_words(size: int, words: str) -> None:
    assert in_words(size) == words


def started(command: Command) -> Process:
    """A running proxy with a running child that records signals."""
    process = command.start("run", "--", *python(NOTE_SIGNALS))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def read_until(fd: int, end: str) -> str:
    seen = b""
    while end.encode() not in seen:
        assert select.select([fd], [], [], DEADLINE_S)[0], f"only {seen!r} came"
        seen += os.read(fd, 4096)
    return seen.decode()
