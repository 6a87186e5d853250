"""The commands `outrider warm`, `pin`, `unpin`, `evict` and `verify`, started from a shell, before a running proxy."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.child import free_ports
from tests.support.control_bucket import read_json, wait_until
from tests.support.fakes import ramp
from tests.support.proxy import Command, Proxy, python
from tests.support.tenants import CLIENTS, NAME, TEAM
from tests.support.tls import TlsFront, certify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

BLOCK = 64 * 1024
COUNT = 6
BUCKET = "commands"
SHARDS = f"s3://{BUCKET}/shard-{{000..005}}.tar"


@pytest.fixture(scope="module", autouse=True)
def shards(bucket: Bucket) -> None:
    bucket.store(BUCKET, {f"shard-{number:03}.tar": ramp(2 * BLOCK, number) for number in range(COUNT)})


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, block_size=str(BLOCK), cache_size=str(20 * (BLOCK + 4096)), verify_origin="off") as running:
        yield running


@pytest.fixture
def command(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> Command:
    made = Command(bucket, tmp_path)
    made.environ |= {"AWS_ENDPOINT_URL": proxy.endpoint, "OUTRIDER_ORIGIN": bucket.endpoint}
    return made


def test_all_named_objects_are_warmed_and_reported(command: Command, proxy: Proxy) -> None:
    command.run("evict", SHARDS)
    done = command.run("warm", SHARDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"done: {COUNT} of {COUNT} objects on disk, 786 kB, in "), done.stdout
    # There is one node, so all copies are one.
    again = command.run("warm", SHARDS, "--copies", "3")
    assert again.returncode == 0, again.stderr
    assert f"done: {COUNT} of {COUNT} objects on disk, 786 kB (786 kB were there before), in " in again.stdout
    assert "3 copies are wanted, and this cache is alone: it keeps one" in again.stderr
    again = command.run("warm", f"s3://{BUCKET}/", "--json", "--copies", "all")
    state = json.loads(again.stdout)
    assert (state["state"], state["bytes"]["fetched"]) == ("done", 0), again.stdout
    assert (state["copies"], state["notes"], again.stderr) == ("all", [], "")
    refused = command.run("warm", SHARDS, "--copies", "some")
    assert (refused.returncode, "'some' is neither all nor a number of copies" in refused.stderr) == (1, True)
    names = [line.split()[:2] for line in command.run("warm").stdout.splitlines()]
    assert [state for _, state in names].count("done") >= 2


def test_a_command_that_fails_says_why_and_ends_with_1(command: Command, proxy: Proxy, tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"# mine\ns3://{BUCKET}/shard-000.tar\ns3://{BUCKET}/none\n")
    done = command.run("warm", "--from-file", tmp_path / "list")
    assert done.returncode == 1
    assert "failed: 1 of 2 objects on disk" in done.stdout
    assert f"s3://{BUCKET}/none: 404 NoSuchKey" in done.stderr
    done = command.run("warm", f"s3://{BUCKET}/shrad/")
    assert (done.returncode, done.stdout.startswith("failed: no object, in ")) == (1, True)
    done = command.run("warm", f"s3://{BUCKET}/none-{{0..2}}", "--name", "none")
    assert (done.returncode, done.stdout.startswith("failed: none of 3 objects on disk, in ")) == (1, True), done.stdout
    assert "none  failed  none of 3 objects\n" in command.run("warm").stdout
    for word in ("evict", "verify"):
        done = command.run(word, f"s3://{BUCKET}/shrad-000.tar")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "outrider: no block of these objects is in the cache; `outrider ls` shows the datasets\n"
    done = command.run("pin", "s3://b/{1..2")
    assert (done.returncode, "Line 1" in done.stderr) == (1, True)
    done = command.run("warm", SHARDS, "--endpoint", f"http://127.0.0.1:{free_ports(1)[0]}")
    assert (done.returncode, "Start one with `outrider serve`" in done.stderr) == (1, True)
    done = command.run("unpin", "--name", "x", "--endpoint", command.environ["OUTRIDER_ORIGIN"])
    assert (done.returncode, "but no Outrider" in done.stderr) == (1, True)
    command.without("AWS_CA_BUNDLE")
    with TlsFront(("127.0.0.1", int(proxy.endpoint.rpartition(":")[2])), certify(tmp_path)) as front:
        done = command.run("warm", SHARDS, "--endpoint", front.endpoint)
    assert (done.returncode, "Set AWS_CA_BUNDLE to a PEM file" in done.stderr) == (1, True), done.stderr
    for words in (["evict"], ["unpin"], ["warm", "--from-file", "/no/such/file"]):
        assert command.run(*words).returncode == 2, words


def test_an_interrupted_warm_up_goes_on_in_the_proxy_and_can_be_cancelled_by_name(
    command: Command, proxy: Proxy
) -> None:
    command.run("evict", SHARDS)
    with command.start("warm", SHARDS, "--rate", "1kB", "--name", "slow") as process:
        s3 = proxy.client()
        wait_until(lambda: "slow" in [warmup["name"] for warmup in read_json(s3, "status.json")["warmups"]])
        # The command polls from here on: the proxy has its list.
        wait_until(lambda: read_json(s3, "warm/slow")["bytes"]["on_disk"] > 0)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "goes on in the proxy" in err
    assert read_json(s3, "warm/slow")["state"] == "running"
    assert command.run("warm", "--cancel", "--name", "slow").returncode == 0
    assert read_json(s3, "warm/slow")["state"] == "cancelled"
    nothing = command.run("warm", "--cancel")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "nothing is named" in nothing.stderr
    unknown = command.run("warm", "--cancel", "--name", "slwo")
    assert (unknown.returncode, "no warm-up called slwo" in unknown.stderr) == (1, True)
    left = json.loads(command.run("warm", SHARDS, "--no-wait", "--json").stdout)
    assert left["state"] in ("running", "done")


def test_a_warm_up_that_a_failing_bucket_holds_up_says_so_once(command: Command, bucket: Bucket) -> None:
    (port,) = free_ports(1)
    with Proxy(bucket, f"http://127.0.0.1:{port}", origin_patience_s="5") as proxy:
        command.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        done = command.run("warm", f"s3://{BUCKET}/")
    held_up, failure = done.stderr.splitlines()
    assert held_up.startswith("outrider: the bucket fails: 1 read waits, for ")
    assert "Run `outrider doctor`" in held_up
    assert (done.returncode, failure.startswith(f"outrider: s3://{BUCKET}/: ")) == (1, True)


def test_a_pin_is_refused_with_the_numbers_and_unpinned_by_its_list(command: Command, bucket: Bucket) -> None:
    done = command.run("pin", SHARDS)
    assert done.returncode == 0, done.stderr
    more = command.run("pin", f"s3://{BUCKET}/shard-00", f"s3://{BUCKET}/")
    assert (more.returncode, "NoSuchKey" in more.stderr) == (1, True)
    assert "cli-" in command.run("pin").stdout
    pinned = command.run("evict", SHARDS)
    assert pinned.stdout == f"not evicted: {2 * COUNT} pinned blocks; `outrider unpin` first\n"
    cached = json.loads(command.run("evict", SHARDS, "--json").stdout)
    assert (cached["blocks"], cached["pinned_blocks"]) == (0, 2 * COUNT)
    assert command.run("unpin", SHARDS).returncode == 0
    assert command.run("pin").stdout == "There is no pin.\n"
    missing = command.run("unpin", SHARDS)
    assert (missing.returncode, "there is no pin of this list; `outrider pin`" in missing.stderr) == (1, True)
    assert "there is no pin called hot;" in command.run("unpin", "--name", "hot").stderr
    gone = command.run("evict", SHARDS)
    assert gone.stdout.startswith(f"evicted {2 * COUNT} blocks, ")
    one = f"s3://{BUCKET}/shard-000.tar"
    assert "done: 1 of 1 object on disk, " in command.run("pin", one, "--name", "one").stdout
    assert command.run("pin").stdout.startswith("one  done  1 of 1 object, ")
    assert command.run("unpin", "--name", "one").stdout.startswith("unpinned one: ")
    bucket.store(BUCKET, {"empty": b""})
    assert "done: 1 of 1 object on disk, in " in command.run("pin", f"s3://{BUCKET}/empty", "--name", "empty").stdout
    assert command.run("pin").stdout == "empty  done  1 of 1 object\n"
    assert command.run("unpin", "--name", "empty").stdout == "unpinned empty\n"
    bucket.client().delete_object(Bucket=BUCKET, Key="empty")


def rotten(directory: Path) -> None:
    path = max((directory / "v2").rglob("*"), key=lambda path: path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))


def test_verify_asks_the_proxy_and_without_one_reads_the_directory_itself(bucket: Bucket, tmp_path: Path) -> None:
    command = Command(bucket, tmp_path)
    command.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    none = command.run("verify")
    assert (none.returncode, "there is no cache in" in none.stderr) == (1, True)
    with Proxy(bucket, block_size=str(BLOCK), cache_dir=str(command.cache_dir)) as proxy:
        command.run("warm", SHARDS, "--endpoint", proxy.endpoint)
        good = command.run("verify", "--endpoint", proxy.endpoint)
        assert (good.returncode, good.stdout) == (0, "verified 12 blocks, 836 kB: none bad\n"), good.stderr
        rotten(command.cache_dir)
        bad = command.run("verify", "--endpoint", proxy.endpoint)
        assert bad.returncode == 1
        assert (f"s3://{BUCKET}/shard-" in bad.stderr, bad.stdout) == (True, "verified 12 blocks, 836 kB: 1 bad\n")
        locked = command.run("verify", "--cache-dir", command.cache_dir)
        assert (locked.returncode, "another process uses it" in locked.stderr) == (1, True)
    named = command.run("verify", SHARDS, "--cache-dir", command.cache_dir)
    assert (named.returncode, "give no URL" in named.stderr) == (2, True), "it would verify all"
    rotten(command.cache_dir)
    offline = command.run("verify", "--json")
    assert offline.returncode == 1, offline.stderr
    found = json.loads(offline.stdout)
    assert found["blocks"] == {"wanted": 11, "verified": 11, "bad": 1}
    assert found["bad"][0]["object"].startswith(f"s3://{BUCKET}/")
    assert json.loads(command.run("verify", "--json").stdout)["blocks"]["bad"] == 0
    with Proxy(bucket) as empty:
        nothing = command.run("verify", "--endpoint", empty.endpoint)
        assert (nothing.returncode, nothing.stdout) == (0, "nothing to verify: there is no block in the cache\n")


def test_credentials_that_cannot_be_loaded_are_reported_and_not_needed(command: Command) -> None:
    command.without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    command.environ["AWS_PROFILE"] = "nope"
    done = command.run("warm", SHARDS)
    assert done.returncode == 0, done.stderr
    assert "asking unsigned" in done.stderr
    assert "nope" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refusal_names_the_keys_that_were_used(bucket: Bucket, tmp_path: Path) -> None:
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    bucket.make_bucket(NAME)
    command = Command(bucket, tmp_path)
    with Proxy(bucket, auth="sigv4", clients=str(clients)) as proxy:
        command.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        command.environ.update(AWS_ACCESS_KEY_ID=TEAM[0], AWS_SECRET_ACCESS_KEY=TEAM[1])
        done = command.run("warm", f"s3://{NAME}/other/")
        assert done.returncode == 1
        assert f"AccessDenied: No grant of this client covers s3://{NAME}/other/" in done.stderr
        assert f"Signed with {TEAM[0]} (env)" in done.stderr
        assert TEAM[1] not in done.stderr
        command.without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        assert "Signed with no keys" in command.run("warm", f"s3://{NAME}/team/").stderr


def test_the_shell_completes_commands_and_their_options(command: Command) -> None:
    def completed(*words: str) -> Any:
        command.environ.update(
            _OUTRIDER_COMPLETE="complete_bash", COMP_WORDS=" ".join(["outrider", *words]), COMP_CWORD=str(len(words))
        )
        # As the installed script is called; `python -m` shows another name.
        program = "import sys; sys.argv = ['outrider']; from outrider.cli import main; main()"
        done = subprocess.run(python(program), env=command.environ, capture_output=True, text=True, timeout=60)
        return done.stdout.split()

    assert {"warm", "pin", "unpin", "evict", "verify", "serve"} <= set(completed(""))
    assert "--from-file" in completed("warm", "--")
