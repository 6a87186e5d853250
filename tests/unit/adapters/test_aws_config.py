"""The AWS config files and variables mean the same to Outrider as to botocore, which runs beside it here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.session import Session, get_session
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from outrider.adapters.origin.aws_config import ca_bundle, in_profile, is_on, missing_profile
from outrider.adapters.origin.credentials import AwsCredentials, _make_session
from outrider.adapters.origin.endpoint import aws_url
from outrider.cli.aws_environment import endpoint_in, endpoint_in_profile, ignores_endpoints

CONFIG = """
[default]
region = default-region
endpoint_url = http://default
ca_bundle = /default.pem

[profile all]
region = all-region
endpoint_url = http://all
ca_bundle = /all.pem
services = two
use_fips_endpoint = true

[profile ignoring]
endpoint_url = http://ignored
ignore_configured_endpoint_urls = TRUE

[profile "with spaces"]
endpoint_url = http://spaces
ca_bundle = ~/spaces.pem

[profile services-only]
services = one

[profile other-service]
services = three
endpoint_url = http://other

[profile empty]

[services one]
s3 =
    endpoint_url = http://services-one
    other = 1

[services two]
sts =
  endpoint_url = http://sts-two
s3 =
  endpoint_url=http://services-two

[services three]
sts =
  endpoint_url = http://sts-three
"""
CREDENTIALS = """
[default]
ca_bundle = /credentials.pem

[keys]
aws_access_key_id = a
aws_secret_access_key = b
region = keys-region
endpoint_url = http://keys
ca_bundle = /keys.pem

[all]
endpoint_url = http://all-in-credentials
"""
PROFILES = ("all", "ignoring", "with spaces", "services-only", "other-service", "empty", "keys", "default")
VARIABLES = {
    "AWS_PROFILE": PROFILES, "AWS_DEFAULT_PROFILE": PROFILES,
    "AWS_ENDPOINT_URL": ("http://env", ""), "AWS_ENDPOINT_URL_S3": ("http://env-s3", ""),
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": ("true", "True", "false", "1", ""),
    "AWS_CA_BUNDLE": ("/env.pem",), "REQUESTS_CA_BUNDLE": ("/requests.pem",),
    "AWS_DEFAULT_REGION": ("env-region",), "AWS_USE_FIPS_ENDPOINT": ("true", "false"),
    "AWS_CONFIG_FILE": ("$CONFIGS/config", "$CONFIGS/missing"),
    "AWS_SHARED_CREDENTIALS_FILE": ("$CONFIGS/credentials", "$CONFIGS/missing"),
}  # fmt: skip
environments = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VARIABLES.items()})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for file in (folder / "config", folder / ".aws" / "config"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(CONFIG)
    for file in (folder / "credentials", folder / ".aws" / "credentials"):
        file.write_text(CREDENTIALS)
    return folder


@pytest.fixture(scope="module")
def session(home: Path) -> Session:
    """A session without a config file."""
    with pytest.MonkeyPatch.context() as patch:
        only(patch, home, {name: str(home / "missing") for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")})
        made = get_session()
        assert made.full_config == {"profiles": {}}
    return made


def of_botocore(session: Session) -> tuple[str | None, ...]:
    """The endpoint, the file of certificates and the region of an S3 client."""
    endpoint = None
    if not session.get_config_variable("ignore_configured_endpoint_urls"):
        endpoint = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    bundle = session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE")
    return endpoint, bundle, session.get_config_variable("region")


async def ours() -> tuple[str | None, ...]:
    named = endpoint_in(os.environ) or endpoint_in_profile(os.environ)
    bundle = ca_bundle(os.environ)
    return named and named[1], bundle and bundle[1], await AwsCredentials().region()


def only(patch: pytest.MonkeyPatch, home: Path, environ: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "REQUESTS_", "S3_"))]:
        patch.delenv(name)
    for name, value in {**environ, "HOME": str(home), "CONFIGS": str(home)}.items():
        patch.setenv(name, value)


@pytest.mark.one_python
@given(environ=environments)
@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_setting_is_read_as_botocore_reads_it(home: Path, environ: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        only(patch, home, environ)
        session = get_session()
        known = session.get_config_variable("profile")
        # botocore refuses a profile that is missing.
        is_missing = known is not None and known not in session.available_profiles
        assert (missing_profile(os.environ) is not None) is is_missing
        if is_missing:
            return
        wanted = of_botocore(session)
        assert await ours() == wanted
        assert ignores_endpoints(os.environ) == bool(session.get_config_variable("ignore_configured_endpoint_urls"))
        assert is_on(os.environ, "use_fips_endpoint") == bool(session.get_config_variable("use_fips_endpoint"))


@pytest.mark.parametrize("profile", PROFILES)
async def test_a_client_of_botocore_takes_that_endpoint_and_those_certificates(
    home: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    only(monkeypatch, home, {"AWS_PROFILE": profile})
    client = get_session().create_client("s3", "us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    endpoint, bundle, _ = await ours()
    assert client.meta.endpoint_url == (endpoint or "https://s3.amazonaws.com" if profile != "all" else endpoint)
    assert client._endpoint.http_session._verify == (bundle or True)
    client.close()


@pytest.mark.parametrize(("region", "fips", "dual"), [
    ("eu-west-1", "", ""), ("us-east-2", "true", ""), ("us-gov-west-1", "true", "false"), ("cn-north-1", "", ""),
    ("us-west-2", "false", "true"), ("us-west-2", "true", "true"), ("cn-north-1", "", "true"),
    ("us-iso-east-1", "", ""),
    ("us-isob-east-1", "", ""), ("us-isof-east-1", "", ""), ("eu-isoe-west-1", "", ""), ("eusc-de-east-1", "", ""),
])  # fmt: skip
def test_without_an_endpoint_the_one_of_aws_is_botocores(
    home: Path, monkeypatch: pytest.MonkeyPatch, session: Session, region: str, fips: str, dual: str
) -> None:
    only(monkeypatch, home, {"AWS_USE_FIPS_ENDPOINT": fips, "AWS_USE_DUALSTACK_ENDPOINT": dual})
    config = Config(
        use_fips_endpoint=fips == "true", use_dualstack_endpoint=dual == "true", signature_version=UNSIGNED,
        s3={"addressing_style": "path"},
    )  # fmt: skip
    client = session.create_client("s3", region, config=config)
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bkt", "Key": "k"})
    client.close()
    assert url == f"{aws_url(region, os.environ)}/bkt/k"


def test_a_broken_or_missing_file_says_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"no section\n\xff")
    for file in (broken, tmp_path / "missing", tmp_path):
        environ = {"AWS_CONFIG_FILE": str(file), "AWS_SHARED_CREDENTIALS_FILE": str(file)}
        assert ca_bundle(environ) is None
        assert in_profile(environ, "region") is None


@pytest.mark.parametrize(("listen", "endpoint"), [
    ("127.0.0.1:9480", "http://127.0.0.1:9480"), ("127.0.0.1:80", "http://localhost"), ("[::1]:9480", "http://[::1]:9480"),
    ("127.0.0.1:443", "https://127.0.0.1"),
])  # fmt: skip
def test_the_proxys_own_address_in_the_profile_is_asked_for_no_role(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listen: str, endpoint: str
) -> None:
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {endpoint}\n")
    only(monkeypatch, tmp_path, {"AWS_CONFIG_FILE": str(tmp_path / "config")})
    assert _make_session(listen).get_config_variable("ignore_configured_endpoint_urls") is True
    assert not _make_session("127.0.0.1:1").get_config_variable("ignore_configured_endpoint_urls")


def test_a_profile_is_not_called_missing_where_a_file_cannot_be_read(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("[profile lab]\nregion = r\n")
    environ = {
        "AWS_CONFIG_FILE": str(config),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_PROFILE": "x",
    }
    assert "Name one of lab" in (missing_profile(environ) or "")
    assert missing_profile({**environ, "AWS_PROFILE": "lab"}) is None
    config.write_text("no section\n[profile x]\nregion = r\n")
    assert missing_profile(environ) is None


def test_a_profile_in_quotes_is_one(tmp_path: Path) -> None:
    (tmp_path / "config").write_text('[profile "my lab"]\nregion = r\n[profile "broken]\nregion = r\n')
    environ = {"AWS_CONFIG_FILE": f"{tmp_path}/config", "AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_PROFILE": "my lab"}
    assert missing_profile(environ) is None
