"""Requests of web pages in a browser on this machine: cross-site requests and DNS rebinding are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

NAME = "pages"


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="key", Body=b"private")
    client.close()


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, freshness="immutable", domain=("s3.corp.example",)) as running:
        for _ in range(2):  # a hit from here on: the fast path must not let in a sender that the slow path refuses
            assert reply_to(running.outrider.listen, f"GET /{NAME}/key", "host: 127.0.0.1").body == b"private"
            running.settle()
        yield running


def reply_to(address: str, line: str, *headers: str, body: bytes = b"") -> Answer:
    host, _, port = address.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        lines = [f"{line} HTTP/1.1", *headers, *([f"content-length: {len(body)}"] if body else [])]
        connection.send("\r\n".join([*lines, "\r\n"]).encode() + body)
        return connection.read_answer(line.partition(" ")[0])


STRANGE_HOSTS = [
    "evil.example",
    "evil.example:9480",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.example.",
    "x.s3.corp.example.evil.example",
    "EVIL.example",
]
OWN_HOSTS = [
    "127.0.0.1",
    "127.0.0.1:9480",
    "localhost",
    "LOCALHOST:1",
    "outrider:9480",
    "[::1]:9480",
    "s3.corp.example",
    "a.localhost:80",
    "S3.Corp.Example:9480",
]


@pytest.mark.parametrize("host", STRANGE_HOSTS)
def test_a_name_that_a_stranger_could_own_is_refused(proxy: Proxy, host: str, trials: Trials) -> None:
    """DNS rebinding: the page's own name now points to 127.0.0.1, and the browser takes the proxy for the page's own
    site."""
    for line in (f"GET /{NAME}/key", f"PUT /{NAME}/rebound", f"GET /{NAME}", "GET /_outrider/status.json", "GET /"):
        answer = reply_to(proxy.outrider.listen, line, f"host: {host}")
        assert (answer.status, answer.code) == (403, "AccessDenied"), line
        trials.record("security", "a name that a stranger points to loopback", "AccessDenied")
    for path in ("/status", "/metrics"):
        assert reply_to(proxy.outrider.admin, f"GET {path}", f"host: {host}").status == 403
    assert reply_to(proxy.outrider.admin, "GET /healthz", f"host: {host}").status == 200, (
        "/healthz reveals nothing and stays open"
    )


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_names_that_no_stranger_can_own_are_accepted(proxy: Proxy, host: str) -> None:
    for again in ("", "connection: keep-alive"):
        assert (
            reply_to(proxy.outrider.listen, f"GET /{NAME}/key", f"host: {host}", *([again] if again else [])).status
            == 200
        )
    if "corp" not in host.lower():
        assert reply_to(proxy.outrider.admin, "GET /status", f"host: {host}").status == 200


FORM = (
    b"--b\r\ncontent-disposition: form-data; name=key\r\n\r\nplanted\r\n"
    b"--b\r\ncontent-disposition: form-data; name=file; filename=f\r\n\r\nx\r\n--b--\r\n"
)
FORMS = "content-type: multipart/form-data; boundary=b"
PAGES = {
    "a form posted by a page": (f"POST /{NAME}", ("origin: https://evil.example", FORMS), FORM),
    "a form posted by a page without a name": (f"POST /{NAME}", ("origin: null", FORMS), FORM),
    "a form, with the headers of newer browsers": (f"POST /{NAME}", ("sec-fetch-site: cross-site", FORMS), FORM),
    "a plan posted as text": ("PUT /_outrider/plan/x", ("origin: https://evil.example",), b'{"reads": []}'),
    "an image": (f"GET /{NAME}/key", ("sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"), b""),
    "a link followed": (f"GET /{NAME}/key", ("sec-fetch-site: cross-site", "sec-fetch-mode: navigate"), b""),
    "a page of another port": (f"GET /{NAME}/key", ("sec-fetch-site: same-site",), b""),
    "a fetch": (f"GET /{NAME}/key", ("origin: http://localhost:8888",), b""),
    "a question before a write": (
        f"OPTIONS /{NAME}/key",
        ("origin: https://evil.example", "access-control-request-method: DELETE"),
        b"",
    ),
}


@pytest.mark.parametrize("case", PAGES)
def test_the_page_of_another_site_is_refused(proxy: Proxy, bucket: Bucket, case: str, trials: Trials) -> None:
    line, headers, body = PAGES[case]
    answer = reply_to(proxy.outrider.listen, line, f"host: {proxy.outrider.listen}", *headers, body=body)
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert "access-control-allow-origin" not in answer.headers
    direct = bucket.client()
    assert [entry["Key"] for entry in direct.list_objects_v2(Bucket=NAME)["Contents"]] == ["key"]
    direct.close()
    trials.record("security", "a web page at the loopback port", "AccessDenied")


def test_the_admin_port_is_not_for_pages_either(proxy: Proxy) -> None:
    for header in ("origin: https://evil.example", "sec-fetch-site: cross-site"):
        assert reply_to(proxy.outrider.admin, "GET /metrics", "host: 127.0.0.1", header).status == 403


def test_a_person_may_open_an_address_in_the_browser(proxy: Proxy) -> None:
    host = f"host: {proxy.outrider.listen}"
    for headers in (
        ["sec-fetch-site: none"],
        ["sec-fetch-site: same-origin", f"origin: http://{proxy.outrider.listen}"],
    ):
        assert reply_to(proxy.outrider.listen, f"GET /{NAME}/key", host, *headers).status == 200
    assert reply_to(proxy.outrider.admin, "GET /status", "host: localhost:9481", "sec-fetch-site: none").status == 200


def test_the_setting_cross_site_lets_pages_of_other_sites_in(bucket: Bucket) -> None:
    with Proxy(bucket, cross_site=True) as proxy:
        for header in ("origin: https://evil.example", "sec-fetch-site: cross-site", "accept: */*"):
            assert reply_to(proxy.outrider.listen, f"GET /{NAME}/key", "host: evil.example", header).status == 200
