"""The reserved bucket `_outrider` over real S3 clients: plans, stall reports, status; none of it reaches the origin."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from outrider.http.control.control_bucket import BODY_BYTES_MAX, NAMES_MAX
from outrider.metrics import SOURCES
from tests.support.client_access import Access
from tests.support.fakes import Piece, RecordedPlans
from tests.support.proxy import ANY_KEYS, Proxy, s3_client
from tests.support.rawhttp import Answer, RawConnection, ask, request
from tests.support.s3_clients import aws
from tests.support.tenants import CLIENTS, TEAM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from outrider.core.ahead.hints import Hint
    from outrider.core.model import ObjectRef
    from tests.support.bucket import Bucket
    from tests.support.tls import Certificate
READS = [f"s3://train-1/a/{number:04}.tar" for number in range(2500)]
PLAN = {"reads": READS, "start": 7, "total": 9000}


def in_order(plans: RecordedPlans) -> tuple[list[str], list[int]]:
    """The announced URLs, and the index of each in its epoch."""
    numbers = [piece.start + place for piece in plans.pieces for place in range(len(piece.urls))]
    return plans.urls, numbers


def record_plans_of(proxy: Proxy) -> RecordedPlans:
    plans = RecordedPlans()
    proxy.outrider.control.plans = plans
    return plans


def put(proxy: Proxy, key: str, body: bytes) -> Answer:
    return ask(proxy.address, "PUT", f"/_outrider/{key}", (("content-length", str(len(body))),), body)


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[int, str, str]:
    answer = error.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"], answer["Error"].get("Message", "")


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_reaches_the_origin(proxy: Proxy) -> Iterator[None]:
    before = proxy.metric("outrider_origin_requests_total")
    yield
    assert proxy.metric("outrider_origin_requests_total") == before


def test_status_is_an_object_like_any_other(proxy: Proxy) -> None:
    s3 = proxy.client()
    status = json.loads(s3.get_object(Bucket="_outrider", Key="status.json")["Body"].read())
    assert status["ready"] is True
    assert status["served_bytes"].keys() == set(SOURCES)
    assert "origin_bytes" in status
    assert s3.head_object(Bucket="_outrider", Key="status.json")["ContentType"] == "application/json"


def test_a_plan_reaches_the_planner_in_its_order_and_with_its_indexes(proxy: Proxy) -> None:
    plans = record_plans_of(proxy)
    proxy.client().put_object(Bucket="_outrider", Key="plan/worker-0", Body=json.dumps(PLAN).encode())
    assert in_order(plans) == (READS, list(range(7, 7 + len(READS))))
    assert {(piece.client, piece.total) for piece in plans.pieces} == {("127.0.0.1", 9000)}
    assert max(len(piece.urls) for piece in plans.pieces) <= 1000, "other work runs between pieces"


def test_a_plan_without_indexes_is_from_the_start_and_of_an_unknown_length(proxy: Proxy) -> None:
    plans = record_plans_of(proxy)
    body = b'{"reads": ["s3://b-1/\\u00e4 %20#?.tar"]}'
    proxy.client().put_object(Bucket="_outrider", Key="plan/w", Body=body)
    assert plans.pieces == [Piece("127.0.0.1", ("s3://b-1/ä %20#?.tar",), 0, None)]


def test_a_plan_is_not_withdrawn_before_all_of_it_has_reached_the_planner(proxy: Proxy) -> None:
    """Otherwise the parts that arrive after the withdrawal would stay."""
    seen: list[str] = []

    with RawConnection(proxy.address) as withdrawing:

        class Seeing(RecordedPlans):
            def announce(
                self, client: str, refs: Sequence[ObjectRef], *, start: int, total: int | None, hint: Hint
            ) -> None:
                if not seen:
                    withdrawing.send(request("DELETE", "/_outrider/plan/w"))
                seen.append("announced")

            def withdraw(self, hint: Hint, others: Iterable[Hint]) -> int:
                seen.append("withdrawn")
                return 7

        proxy.outrider.control.plans = Seeing()
        assert put(proxy, "plan/w", json.dumps(PLAN).encode()).status == 200
        assert withdrawing.read_answer("DELETE").headers["x-outrider-withdrawn"] == "7"
    assert seen == ["announced"] * 3 + ["withdrawn"]


def test_a_plan_in_another_encoding_of_json_can_be_read_back(proxy: Proxy) -> None:
    record_plans_of(proxy)
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert put(proxy, "plan/other", ' {"reads": ["s3://bkt/ä"]} \n'.encode(encoding)).status == 200
        assert json.loads(ask(proxy.address, "GET", "/_outrider/plan/other").body)["reads"] == ["s3://bkt/ä"]


def test_a_plan_can_be_read_back_replaced_and_forgotten(proxy: Proxy) -> None:
    s3 = proxy.client()
    body = json.dumps(PLAN).encode()
    s3.put_object(Bucket="_outrider", Key="plan/mine", Body=body)
    got = s3.get_object(Bucket="_outrider", Key="plan/mine")
    plan = json.loads(got["Body"].read())
    assert plan.pop("progress").keys() == {"told", "read", "here", "left", "unknown", "ignored"}
    assert plan == PLAN
    assert s3.get_object(Bucket="_outrider", Key="plan/mine", Range="bytes=2-8")["Body"].read() == body[2:9]
    s3.put_object(Bucket="_outrider", Key="plan/mine", Body=b'{"reads": ["s3://b-1/k"]}')
    s3.delete_object(Bucket="_outrider", Key="plan/mine")
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket="_outrider", Key="plan/mine")
    assert code_of(error)[:2] == (404, "NoSuchKey")
    s3.delete_object(Bucket="_outrider", Key="plan/mine")


def test_the_aws_command_reads_and_writes_the_control_bucket(proxy: Proxy, tmp_path: Path) -> None:
    plans = record_plans_of(proxy)
    access = Access(proxy.endpoint, ANY_KEYS, tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"reads": READS[:3]}))
    plan = str(tmp_path / "plan.json")
    aws(access, "s3api", "put-object", "--bucket", "_outrider", "--key", "plan/by hand", "--body", plan)
    assert plans.urls == READS[:3]
    aws(access, "s3", "cp", plan, "s3://_outrider/plan/by-cp")
    assert plans.urls == READS[:3] * 2
    listed = aws(access, "s3", "ls", "s3://_outrider/").decode().split()
    assert listed[-1] == "status.json"
    assert "plan/" in listed
    plans_listed = aws(access, "s3", "ls", "s3://_outrider/plan/").decode()
    assert [line for line in plans_listed.splitlines() if line.endswith(" by hand")], plans_listed
    assert json.loads(aws(access, "s3", "cp", "s3://_outrider/status.json", "-"))["ready"] is True


def test_a_plan_may_come_in_chunks_over_https(bucket: Bucket, certificate: Certificate) -> None:
    with Proxy(bucket, tls_cert=certificate.chain, tls_key=certificate.key) as proxy:
        plans = record_plans_of(proxy)
        s3 = s3_client(proxy.endpoint, verify=str(certificate.authority))
        s3.put_object(Bucket="_outrider", Key="plan/w", Body=json.dumps(PLAN).encode())
        s3.close()
        assert plans.urls == READS


def test_a_list_shows_all_objects_of_the_control_bucket(proxy: Proxy) -> None:
    s3 = proxy.client()
    for name in ("list/a", "list/b&<ü", "other"):
        s3.put_object(Bucket="_outrider", Key=f"plan/{name}", Body=b'{"reads": []}')
    for listing in (s3.list_objects_v2, s3.list_objects):
        page = listing(Bucket="_outrider", Prefix="plan/list/")
        size = len(s3.get_object(Bucket="_outrider", Key="plan/list/a")["Body"].read())
        assert [(each["Key"], each["Size"]) for each in page["Contents"]] == [
            ("plan/list/a", size), ("plan/list/b&<ü", size),
        ]  # fmt: skip
        page = listing(Bucket="_outrider", Prefix="plan/", Delimiter="/")
        assert {"Prefix": "plan/list/"} in page["CommonPrefixes"]
        assert "plan/other" in [each["Key"] for each in page["Contents"]]
    s3.head_bucket(Bucket="_outrider")


BAD_PLANS = {
    b"": "does not parse",
    b"[]": "is a JSON object",
    b"[" * 100_000: "does not parse",
    b"{}": 'needs "reads"',
    b'{"reads": "s3://b/k"}': 'needs "reads"',
    b'{"reads": ["s3://bkt/k", "/bkt/k"]}': "reads[1] is not the URL of an object",
    b'{"reads": ["s3://bkt/"]}': "reads[0]",
    b'{"reads": ["s3://_outrider/status.json"]}': "reads[0]",
    b'{"reads": ["s3://bkt/\\ud800"]}': "reads[0]",
    b'{"reads": [], "start": -1}': '"start" must be',
    b'{"reads": [], "start": true}': '"start" must be',
    b'{"reads": [], "total": 1.5}': '"total" must be',
    b'{"reads": ["s3://bkt/k"], "start": 3, "total": 3}': 'more than its "total"',
    b'{"reads": [], "order": 1}': "no field 'order'",
}


def test_a_malformed_body_is_refused_with_the_reason(proxy: Proxy) -> None:
    plans = record_plans_of(proxy)
    for body, why in BAD_PLANS.items():
        answer = put(proxy, "plan/bad", body)
        assert (answer.status, answer.code) == (400, "InvalidArgument")
        assert why in answer.error["Message"]
        assert ask(proxy.address, "GET", "/_outrider/plan/bad").status == 404
    assert not plans.pieces
    for body in (b"", b"1", b'{"steps": -1}', b'{"steps": 1.0}', b'{"wait_s": "1"}', b'{"wait_s": NaN}',
                 b'{"compute_s": -0.1}', b'{"epoch": null}', b'{"wait": 1}'):  # fmt: skip
        answer = put(proxy, "stall/bad", body)
        assert (answer.status, answer.code) == (400, "InvalidArgument"), body


def test_a_body_without_end_is_not_read(proxy: Proxy) -> None:
    s3 = proxy.client()
    with pytest.raises(ClientError) as error:
        s3.put_object(Bucket="_outrider", Key="plan/long", Body=bytes(BODY_BYTES_MAX + 1))
    assert code_of(error)[:2] == (400, "EntityTooLarge")
    chunked = ask(
        proxy.address, "PUT", "/_outrider/stall/long",
        (("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"), ("x-amz-decoded-content-length", "70000"),
         ("transfer-encoding", "chunked")),
    )  # fmt: skip
    assert chunked.code == "EntityTooLarge"


def test_every_request_for_the_reserved_bucket_is_answered_by_the_proxy(proxy: Proxy) -> None:
    for method, target, status in (
        ("GET", "/_outrider/nothing", 404), ("HEAD", "/_outrider/plan/none", 404), ("GET", "/_outrider/plan/", 400),
        ("GET", "/_outrider/plan", 404), ("PUT", "/_outrider/status.json", 405), ("DELETE", "/_outrider", 405),
        ("PUT", "/_outrider/", 405), ("POST", "/_outrider/plan/w?uploads", 405), ("GET", "/_outrider?acl", 405),
        ("GET", "/%5Foutrider/status.json", 200), ("GET", "/_outrider?uploads", 405),
        ("POST", "/_outrider/plan/w", 405), ("GET", f"/_outrider/plan/{'n' * 201}", 400),
        ("GET", "/_outriders/status.json", 400),
    ):  # fmt: skip
        assert ask(proxy.address, method, target).status == status, (method, target)


def test_a_key_of_a_virtual_host_bucket_may_begin_with_the_reserved_name(bucket: Bucket) -> None:
    bucket.store("control-host", {"_outrider/status.json": b"theirs"})
    with Proxy(bucket, domain=("s3.test",)) as proxy, RawConnection(proxy.address) as connection:
        connection.send(b"GET /_outrider/status.json HTTP/1.1\r\nHost: control-host.s3.test\r\n\r\n")
        assert connection.read_answer().body == b"theirs"


def test_the_oldest_stall_reports_are_forgotten_when_there_are_too_many(proxy: Proxy) -> None:
    length = (("content-length", "2"),)
    with RawConnection(proxy.address) as connection:
        for number in range(NAMES_MAX + 5):
            assert connection.ask("PUT", f"/_outrider/stall/many-{number}", length, b"{}").status == 200
        page = proxy.client().list_objects_v2(Bucket="_outrider", Prefix="stall/")
        assert page["KeyCount"] == NAMES_MAX
        assert connection.ask("GET", "/_outrider/stall/many-0").status == 404
        assert connection.ask("GET", f"/_outrider/stall/many-{NAMES_MAX + 4}").status == 200


def test_stalls_add_up_by_name_and_in_the_metrics_without_a_name(proxy: Proxy) -> None:
    s3 = proxy.client()
    for more in (
        {"steps": 3, "wait_s": 0.5, "compute_s": 2, "epoch": 1},
        {"steps": 2, "wait_s": 0.25, "compute_s": 1.5, "epoch": 2},
    ):
        s3.put_object(Bucket="_outrider", Key="stall/rank-0", Body=json.dumps(more).encode())
    sums = json.loads(s3.get_object(Bucket="_outrider", Key="stall/rank-0")["Body"].read())
    assert sums == {"steps": 5, "wait_s": 0.75, "compute_s": 3.5, "epoch": 2}
    assert proxy.metric("outrider_job_wait_seconds_total") == 0.75
    assert proxy.metric("outrider_job_compute_seconds_total") == 3.5
    assert proxy.metric("outrider_job_steps_total") == 5
    assert b"rank-0" not in proxy.outrider.metrics.text()
    s3.delete_object(Bucket="_outrider", Key="stall/rank-0")
    assert ask(proxy.address, "GET", "/_outrider/stall/rank-0").status == 404


def test_with_signatures_checked_a_plan_needs_one_and_a_grant_for_each_object(bucket: Bucket, tmp_path: Path) -> None:
    """`tests/trust/test_security_tenants.py` has the plans of others."""
    (tmp_path / "clients.toml").write_text(CLIENTS)
    with Proxy(bucket, auth="sigv4", clients=tmp_path / "clients.toml") as guarded:
        plans, s3 = record_plans_of(guarded), guarded.client(TEAM)
        for key in ("status.json", "?list-type=2", "plan/x", "stall/x"):
            assert ask(guarded.address, "GET", f"/_outrider/{key}").code == "AccessDenied"
            assert put(guarded, key, b'{"reads": ["s3://tenants/team/k"]}').code == "AccessDenied"
        assert not plans.pieces
        s3.put_object(Bucket="_outrider", Key="plan/w", Body=b'{"reads": ["s3://tenants/team/k"]}')
        assert {piece.client for piece in plans.pieces} == {f"127.0.0.1 {TEAM[0]}"}
        plans.pieces.clear()
        with pytest.raises(ClientError) as error:
            s3.put_object(Bucket="_outrider", Key="plan/w", Body=b'{"reads": ["s3://tenants/team/k", "s3://other/k"]}')
        assert code_of(error)[:2] == (403, "AccessDenied")
        assert "s3://other/k" in code_of(error)[2]
        assert not plans.pieces
