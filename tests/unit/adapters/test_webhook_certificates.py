"""Certificates of the webhook, read from a Secret that anybody may have edited."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.adapters.kubernetes.certificates import X509Certifier
from outrider.core.operator.certificates import Issued, Kept, Validity, secret_of, with_authority

pytestmark = pytest.mark.lowest

DAY_S = 24 * 3600.0
NAMES = frozenset({"a.b.svc", "c.b.svc"})
CERTIFIER = X509Certifier()
OLD = CERTIFIER.authority(Validity(0, 200 * DAY_S))
NEW = CERTIFIER.authority(Validity(100 * DAY_S, 300 * DAY_S))
SERVER = CERTIFIER.server(NAMES, OLD, Validity(150 * DAY_S, 250 * DAY_S))
KEPT = Kept((NEW, OLD), SERVER)
DATA: dict[str, str] = secret_of("a", KEPT, None)["data"]


def changed(**parts: str) -> dict[str, str]:
    return {**DATA, **{name: base64.b64encode(text.encode()).decode() for name, text in parts.items()}}


def test_a_secret_is_read_as_it_was_written() -> None:
    assert CERTIFIER.read(DATA) == KEPT


def test_a_server_does_not_outlive_its_authority() -> None:
    """An API server would refuse the chain."""
    assert SERVER.validity == Validity(150 * DAY_S, 200 * DAY_S)


def test_an_authority_that_has_ended_is_no_longer_kept() -> None:
    latest = CERTIFIER.authority(Validity(200 * DAY_S, 400 * DAY_S))
    assert with_authority(KEPT.authorities, latest, 200 * DAY_S) == (latest, NEW)
    assert Kept((latest, NEW, OLD), SERVER).bundle(200 * DAY_S) == latest.certificate + NEW.certificate


OTHER = CERTIFIER.authority(Validity(0, DAY_S))


@pytest.mark.parametrize(
    "parts",
    [
        {"ca.crt": NEW.certificate},
        {"ca.key": OLD.key + NEW.key},
        {"ca.crt": NEW.certificate + OTHER.certificate, "ca.key": NEW.key + OTHER.key},
        {"tls.key": OLD.key},
        {"tls.crt": OTHER.certificate, "tls.key": OTHER.key},
        {"ca.crt": "", "ca.key": ""},
    ],
    ids=["a key too many", "keys in another order", "the signer is missing", "another key", "another server", "empty"],
)
def test_parts_that_do_not_go_together_are_damaged(parts: dict[str, str]) -> None:
    assert CERTIFIER.read(changed(**parts)) is None


@pytest.mark.one_python
@given(st.dictionaries(st.sampled_from(sorted(DATA)), st.text() | st.none(), min_size=1), st.integers(0, 2000))
@settings(max_examples=20)
def test_no_content_of_a_secret_fails_the_reader(parts: dict[str, str | None], cut: int) -> None:
    assert CERTIFIER.read({**DATA, **parts}) in (None, KEPT)
    found = CERTIFIER.read({name: text[:cut] for name, text in DATA.items()})
    assert found is None or isinstance(found.server, Issued)
