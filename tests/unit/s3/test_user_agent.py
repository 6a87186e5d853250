"""The application name in the User-Agent, set by the SDKs' own setting, as boto3 and our SDK send it."""

from __future__ import annotations

import pytest
from botocore.config import Config
from botocore.session import Session
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.auth.grants import Client
from outrider.core.auth.verification import Identity
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.headers import app_of
from outrider.core.s3.plain_request import recognise
from outrider.http.access import Principal, reader_name, reader_shown
from outrider_sdk.s3port import _app_of

NOBODY = Principal(None, None, UNSIGNED)


def sent_by_boto3(app: str) -> str:
    client = Session().create_client(
        "s3", "us-east-1", config=Config(user_agent_appid=app), aws_access_key_id="AK", aws_secret_access_key="secret"
    )
    try:
        return str(client.meta.config.user_agent)
    finally:
        client.close()


@pytest.mark.parametrize("app", ["sweep-7", "a b/c", "#1, of 4!", "x" * 128])
def test_boto3_and_our_sdk_send_the_same_name(app: str) -> None:
    name = app_of(sent_by_boto3(app))
    assert name
    assert name == _app_of({"AWS_SDK_UA_APP_ID": app})
    assert name == app_of(f"outrider-sdk app/{name}")


def test_a_user_agent_without_an_application_has_no_name() -> None:
    assert app_of(sent_by_boto3("")) == app_of("") == _app_of({}) == ""


@pytest.mark.parametrize("text", ["myapp/1", "x app/", "x app/a\tb y", 'app/"quoted"', f"app/{'x' * 129}", "app/é"])
def test_a_form_that_no_sdk_sends_is_no_name(text: str) -> None:
    assert app_of(text) == ""


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=80))
def test_a_name_is_one_word_of_the_user_agent(text: str) -> None:
    app = app_of(text)
    assert not app or (f"app/{app}" in text.split(" "))
    read = recognise(f"GET /b/k HTTP/1.1\r\nHost: h\r\nUser-Agent: {text}\r\n\r\n".encode())
    assert read is None or read.app == app


@pytest.mark.parametrize("app", ["", "sweep-7"])
@pytest.mark.parametrize("key", [None, "VISIONTEAM"])
def test_a_reader_is_shown_by_names_and_never_by_its_key(key: str | None, app: str) -> None:
    who = (
        NOBODY
        if key is None
        else Principal(Client("vision", key, ()), Identity(key, UNSIGNED, "", b"", "", ""), UNSIGNED)
    )
    shown = reader_shown({"VISIONTEAM": "vision"}, reader_name(who, "::1", app))
    assert shown == " ".join(part for part in ("::1", key and "vision", app) if part)


def test_a_reader_whose_key_is_gone_is_shown_without_it() -> None:
    assert reader_shown({}, "10.0.0.1 OLDKEY app/a") == "10.0.0.1 a"
