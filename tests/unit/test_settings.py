"""Settings: the order of the sources, errors that name the setting, and no secret in any message."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from outrider.cli import load_settings
from outrider.core.auth.grants import AccessLevel
from outrider.core.cache.freshness import Freshness
from outrider.core.cache.tenants import TenantShare
from outrider.core.model import ObjectRef
from outrider.settings import Settings, SettingsError, load
from outrider.settings.clients_file import shares_of

SECRET = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings in the environment of the tests."""
    import os

    for name in list(os.environ):
        if name.upper().startswith("OUTRIDER_"):
            monkeypatch.delenv(name)


def file_with(folder: Path, text: str, name: str = "outrider.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    config = file_with(tmp_path, 'region = "file"\nfills = 1\npolicy = "fifo"\n')
    environ = {"OUTRIDER_REGION": "env", "OUTRIDER_FILLS": "2"}
    settings = load({"region": "flag", "fills": None}, config, environ)
    assert (settings.region, settings.fills, settings.policy) == ("flag", 2, "fifo")
    assert load({}, None, {}).region is None


def test_the_file_can_be_named_by_the_environment_and_a_flag_names_another(tmp_path: Path) -> None:
    one, other = file_with(tmp_path, "fills = 1"), file_with(tmp_path, "fills = 2", "other.toml")
    assert load({}, None, {"OUTRIDER_CONFIG": str(one)}).fills == 1
    assert load({}, other, {"OUTRIDER_CONFIG": str(one)}).fills == 2


@pytest.mark.parametrize("value", ["2", "nonsense"])
@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_a_retired_setting_is_ignored_and_reported(source: str, value: str, tmp_path: Path) -> None:
    environ = {"OUTRIDER_WORKERS": value} if source == "environment" else {}
    config = file_with(tmp_path, f'workers = "{value}"\n') if source == "file" else None
    settings = load({"workers": value if source == "flag" else None, "fills": 3}, config, environ)
    assert (settings.retired, settings.fills) == (("workers",), 3)
    assert load({"fills": 3}, None, {}).retired == ()


def test_variables_that_kubernetes_makes_for_services_are_no_settings() -> None:
    made = {
        "OUTRIDER_SERVICE_HOST": "10.0.0.7", "OUTRIDER_SERVICE_PORT": "9480", "OUTRIDER_SERVICE_PORT_S3": "9480",
        "OUTRIDER_PORT": "tcp://10.0.0.7:9480", "OUTRIDER_PORT_9480_TCP": "tcp://10.0.0.7:9480",
        "OUTRIDER_PORT_9480_TCP_PROTO": "tcp", "OUTRIDER_PORT_9480_TCP_PORT": "9480",
        "OUTRIDER_PORT_9480_TCP_ADDR": "10.0.0.7",
    }  # fmt: skip
    operators = {name.replace("OUTRIDER_", "OUTRIDER_OPERATOR_", 1): value for name, value in made.items()}
    assert load({}, None, made | operators | {"OUTRIDER_FILLS": "3"}).fills == 3
    with pytest.raises(SettingsError, match="OUTRIDER_PORT: no such setting"):
        load({}, None, {"OUTRIDER_PORT": "9480"})
    with pytest.raises(SettingsError, match="OUTRIDER_SERVICE_HOSTS: no such setting"):
        load({}, None, made | {"OUTRIDER_SERVICE_HOSTS": "x"})


@pytest.mark.parametrize(
    ("given", "whole", "size"),
    [("1000", 0, 1000), ("1KiB", 0, 1024), ("1.5 GiB", 0, 3 * 2**29), ("2kb", 0, 2000), ("25%", 1000, 250),
     ("100 %", 7, 7), ("0", 9, 0), (4096, 0, 4096), ("1TiB", 0, 2**40)],
)  # fmt: skip
def test_sizes_are_bytes_units_or_a_share(given: str | int, whole: int, size: int) -> None:
    assert load({"min_free": given}, None, {}).min_free.of(whole) == size


def test_a_cache_size_that_lacks_its_unit_is_refused() -> None:
    """The blocks in the cache would be evicted."""
    for size in ("10", "4095", 10, "0.8"):
        with pytest.raises(SettingsError, match=r"--cache-size .*: '?[\d.]+'? is too few bytes .*write a unit"):
            load({"cache_size": size}, None, {})
    for size in ("0", "4096", "0%"):
        load({"cache_size": size}, None, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [("origin", "s3.amazonaws.com"), ("origin", "ftp://x"), ("origin", "http://"), ("origin", "http://u:p@h"),
     ("origin", "http://h?x=1"), ("origin", "http://h:x"), ("origin", "http://h:70000"), ("origin", "http://h h"),
     ("origin", "http://h#x"), ("origin", "http://[::1"), ("cache_dir", ""), ("tls_cert", ""),
     ("listen", "9480"), ("listen", "h:x"), ("listen", "h:70000"), ("listen", "::1:9480"),
     ("listen", "::1.example.com:1"),
     ("listen", "[::1:0"), ("admin", ""), ("admin", ":::9481"),
     ("cache_size", "lots"), ("cache_size", "101%"), ("cache_size", "-1"), ("cache_size", "1XB"), ("min_free", "%"),
     ("block_size", "1%"), ("block_size", "1KiB"), ("block_size", "100000"), ("block_size", "2GiB"),
     ("auth", "none"), ("freshness", "ttl"), ("freshness", "soon"), ("policy", "random"), ("verify", "never"),
     ("fills", "0"), ("fills", "x"), ("requests", "0"), ("catalog_entries", "0"), ("drain_s", "-1"),
     ("origin_connections", "0"), ("log_level", "loud"), ("log_format", "xml"), ("stale_if_error", "perhaps"),
     ("price_per_gb", "inf"), ("price_per_1000_gets", "nan")],
)  # fmt: skip
@pytest.mark.parametrize("source", ["flag", "environment", "file"])
def test_an_invalid_value_is_named_from_each_source(source: str, name: str, value: str, tmp_path: Path) -> None:
    environ = {f"OUTRIDER_{name.upper()}": value} if source == "environment" else {}
    config = file_with(tmp_path, f'{name} = "{value}"\n') if source == "file" else None
    with pytest.raises(SettingsError) as refused:
        load({name: value if source == "flag" else None}, config, environ)
    assert f"--{name.replace('_', '-')}" in str(refused.value)
    assert f"OUTRIDER_{name.upper()}" in str(refused.value)


@pytest.mark.parametrize("path", ["/train", "/train/", "/train/2026/"])
def test_an_origin_with_a_path_is_refused_with_the_endpoint_to_write(path: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load({"origin": f"https://s3.example.com:8333{path}"}, None, {})
    text = str(refused.value)
    assert "write https://s3.example.com:8333" in text
    assert "s3://train/" in text
    assert "\n" not in text
    assert load({"origin": "http://h/"}, None, {}).origin == "http://h"


def test_an_endpoint_of_the_aws_environment_is_refused_by_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    flags: dict[str, object] = {"origin": None, "listen": None}
    with pytest.raises(typer.Exit) as refused:
        load_settings.load_with_origin(flags, None, {}, {"AWS_ENDPOINT_URL": "http://h/train"})
    assert refused.value.exit_code == 2
    assert capsys.readouterr().err.startswith("outrider: AWS_ENDPOINT_URL: 'http://h/train' has a path")


@pytest.mark.parametrize(("name", "value"), [("block_size", 0), ("cache_dir", ""), ("admin", "")])
def test_a_flag_with_an_empty_value_counts_as_given(
    name: str, value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as refused:
        load_settings.load({name: value, "domain": None}, None)
    assert refused.value.exit_code == 2
    assert f"--{name.replace('_', '-')}" in capsys.readouterr().err


def test_an_error_names_only_flags_that_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^fills \(OUTRIDER_FILLS\): 'x' input"):
        load({"cache_size": None}, None, {"OUTRIDER_FILLS": "x"})


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("[[list_cache]]\nprefixes = 'x'\nttl = 5", "list_cache.0.ttl: no such setting. Known: prefixes, ttl_s."),
        ("[[list_cache]]\nprefixes = 'x'", "list_cache.0.ttl_s: is missing"),
        ("[[freshness_rules]]\nobjects = 'x'\nfreshness = 'soon'", "freshness_rules.0.freshness: 'soon' is not one of"),
        ("[[prefetch_rules]]\nobjects = 'x'\nprefetch = 'no'", "prefetch_rules.0.prefetch: 'no' input should be"),
    ],
)
def test_the_error_of_a_wrong_rule_names_the_field(rule: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        load({}, file_with(tmp_path, rule), {})
    assert any(line.startswith(problem) for line in str(refused.value).splitlines()), refused.value


@pytest.mark.parametrize("size", ["true", "1e9"])
def test_an_invalid_size_in_a_file_is_explained(size: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is not a size: write bytes"):
        load({}, file_with(tmp_path, f"cache_size = {size}"), {})


def test_all_errors_are_shown_together() -> None:
    with pytest.raises(SettingsError) as refused:
        load({"fills": 0, "policy": "random"}, None, {})
    assert len(str(refused.value).splitlines()) == 2


def test_an_unknown_setting_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"OUTRIDER_CASH_DIR: no such setting.*cache_dir"):
        load({}, None, {"OUTRIDER_CASH_DIR": "/x"})
    with pytest.raises(SettingsError, match=r"cash_dir: no such setting.*cache_dir"):
        load({}, file_with(tmp_path, 'cash_dir = "/x"'), {})


def test_the_error_of_a_missing_or_invalid_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load({}, tmp_path / "nowhere.toml", {})
    with pytest.raises(SettingsError, match="not TOML"):
        load({}, file_with(tmp_path, "= = ="), {})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"])
def test_loopback_binds_to_loopback(address: str) -> None:
    assert load({"listen": address}, None, {}).listen == address


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "10.0.0.1", "[::]", "example.com", "127.example.com", "localhost.example.com"],
)
def test_loopback_refuses_every_other_address(host: str) -> None:
    address = f"{host}:1"
    with pytest.raises(SettingsError, match=r"--listen.*loopback"):
        load({"listen": address}, None, {})


def test_the_admin_port_off_loopback_needs_a_token_and_no_message_shows_it() -> None:
    with pytest.raises(SettingsError, match="OUTRIDER_ADMIN_TOKEN"):
        load({"admin": "0.0.0.0:1"}, None, {})
    settings = load({"admin": "0.0.0.0:1"}, None, {"OUTRIDER_ADMIN_TOKEN": SECRET})
    assert SECRET not in repr(settings)
    with pytest.raises(SettingsError) as refused:
        load({"admin_token": [SECRET]}, None, {})
    assert SECRET not in str(refused.value)


def test_a_token_from_a_file_loses_its_newline() -> None:
    token = load({}, None, {"OUTRIDER_ADMIN_TOKEN": f"{SECRET}\n"}).admin_token
    assert token is not None
    assert token.get_secret_value() == SECRET


@pytest.mark.parametrize("token", ["", "\n", f"{SECRET}\ntwo", f"{SECRET}\u00e9"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(SettingsError, match="OUTRIDER_ADMIN_TOKEN") as refused:
        load({}, None, {"OUTRIDER_ADMIN_TOKEN": token})
    assert SECRET not in str(refused.value)


def test_certificate_and_key_go_together() -> None:
    with pytest.raises(SettingsError, match="--tls-cert and --tls-key"):
        load({"tls_cert": "/x"}, None, {})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError):
        load({}, None, {}).fills = 3


@pytest.mark.parametrize(
    ("block_size", "fills", "blocks"), [("8MiB", 64, 32), ("512KiB", 64, 64), ("8MiB", 4, 4), ("512MiB", 64, 1)]
)  # fmt: skip
def test_no_more_blocks_are_prefetched_at_once_than_fills_may_be_under_way(
    block_size: str, fills: int, blocks: int
) -> None:
    flags = {"block_size": block_size, "fills": fills, "cache_size": "10GiB"}
    assert load(flags, None, {}).prefetch_blocks == blocks


def test_the_first_freshness_rule_that_matches_holds(tmp_path: Path) -> None:
    rules = (
        'freshness = "always"\n'
        '[[freshness_rules]]\nobjects = "train/shards/*"\nfreshness = "immutable"\n'
        '[[freshness_rules]]\nobjects = "train/*"\nfreshness = "ttl:5"\n'
    )
    settings = load({}, file_with(tmp_path, rules), {})
    assert settings.freshness_of(ObjectRef("train", "shards/1")) == Freshness.parse("immutable")
    assert settings.freshness_of(ObjectRef("train", "x")) == Freshness.parse("ttl:5")
    assert settings.freshness_of(ObjectRef("other", "x")) == Freshness.parse("always")


# -- clients ----------------------------------------------------------------------------------------------------

GOOD = f"""
[[client]]
access_key = "AK1"
secret_key = "{SECRET}"
name = "job"
grants = [{{bucket = "train-*", prefix = "a/", access = "write"}}, {{bucket = "open"}}]
[[client]]
access_key = "AK2"
secret_key = "{SECRET}"
"""


def with_clients(folder: Path, text: str) -> Settings:
    return load({"auth": "sigv4", "clients": file_with(folder, text, "clients.toml")}, None, {})


def test_clients_are_read_with_their_grants(tmp_path: Path) -> None:
    settings = with_clients(tmp_path, GOOD)
    (job, secret), (two, _) = settings.known_clients
    assert (job.name, job.access_key, secret.get_secret_value()) == ("job", "AK1", SECRET)
    assert [(g.bucket, g.prefix, g.access) for g in job.grants] == [
        ("train-*", "a/", AccessLevel.WRITE), ("open", "", AccessLevel.READ),
    ]  # fmt: skip
    assert (two.name, two.grants) == ("AK2", ())
    assert SECRET not in repr(settings.known_clients)


def test_one_client_may_be_anonymous(tmp_path: Path) -> None:
    anonymous = '[[client]]\nanonymous = true\ngrants = [{bucket = "open"}]\n'
    settings = with_clients(tmp_path, GOOD + anonymous)
    assert [client.access_key for client, _ in settings.known_clients] == ["AK1", "AK2"]
    client = settings.anonymous_client
    assert client is not None
    assert (client.name, client.access_key, client.is_anonymous) == ("anonymous", "", True)
    assert [grant.bucket for grant in client.grants] == ["open"]
    assert with_clients(tmp_path, GOOD).anonymous_client is None
    for text, error in [
        (anonymous * 2, "anonymous = true is given twice"),
        (anonymous + f'access_key = "AK3"\nsecret_key = "{SECRET}"\n', "has no access_key and no secret_key"),
        (anonymous + f'secret_key = "{SECRET}"\n', "has no access_key and no secret_key"),
        ('[[client]]\nanonymous = false\naccess_key = "AK3"\n', "client.0: .*is missing: secret_key"),
        ("[[client]]\n", "is missing: access_key, secret_key"),
        ('[[client]]\naccess_key = ""\nsecret_key = ""\n', "access_key"),
    ]:
        with pytest.raises(SettingsError, match=error) as refused:
            with_clients(tmp_path, text)
        assert SECRET not in str(refused.value)


def test_clients_of_one_name_are_one_tenant_with_one_share(tmp_path: Path) -> None:
    second = f'[[client]]\naccess_key = "AK3"\nsecret_key = "{SECRET}"\nname = "job"\n'

    def shares(text: str) -> dict[str, TenantShare]:
        settings = with_clients(tmp_path, text)
        return shares_of((settings.known_clients, None))

    assert shares(GOOD) == {"job": TenantShare(), "AK2": TenantShare()}
    text = GOOD + 'cache_share = "12.5%"\n' + second + "line_share = 1\n"
    assert shares(text) == {"job": TenantShare(line=1.0), "AK2": TenantShare(cache=0.125)}
    both = second.replace("AK3", "AK4") + 'line_share = "100 %"\n'
    assert shares(text + both) == shares(text)
    with pytest.raises(SettingsError, match="clients named job are one tenant: give them one line_share"):
        shares(text + both.replace("100 %", "50%"))


@pytest.mark.parametrize("wrong", ["0", "1.5", '"30"', '"0%"', '"101%"', '"30GiB"', "true", '"half"', "-0.5", "nan"])
def test_a_share_is_a_percentage_or_a_number_up_to_one(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"client.1.cache_share: is not a share: write a percentage such as 30%"):
        with_clients(tmp_path, f"{GOOD}cache_share = {wrong}\n")
    with pytest.raises(SettingsError, match="anonymous = true has no shares"):
        with_clients(tmp_path, "[[client]]\nanonymous = true\nline_share = 0.5\n")


def test_sigv4_takes_any_address_and_needs_clients(tmp_path: Path) -> None:
    clients = file_with(tmp_path, GOOD, "clients.toml")
    assert load({"auth": "sigv4", "clients": clients, "listen": "0.0.0.0:1"}, None, {}).auth == "sigv4"
    with pytest.raises(SettingsError, match="--clients"):
        load({"auth": "sigv4"}, None, {})


def test_invalid_grants_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--clients FILE needs --auth sigv4"):
        load({"clients": file_with(tmp_path, GOOD, "clients.toml")}, None, {})


@pytest.mark.parametrize(
    "text",
    [
        f'[[client]]\nsecret_key = "{SECRET}"\n',
        f'[[client]]\naccess_key = ""\nsecret_key = "{SECRET}"\n',
        f'[[client]]\naccess_key = "{SECRET}"\n',
        '[[client]]\naccess_key = "AK"\nsecret_key = ""\n',
        f'[[client]]\naccess_key = "AK"\nsecret_key = ["{SECRET}"]\n',
        f'[[client]]\naccess_key = "AK"\nsecret_key = "{SECRET}"\nextra = "{SECRET}"\n',
        f'[[client]]\naccess_key = "AK"\nsecret_key = "{SECRET}"\ngrants = "{SECRET}"\n',
        f'[[client]]\naccess_key = "AK"\nsecret_key = "{SECRET}"\ngrants = [{{bucket = "b", access = "{SECRET}"}}]\n',
        f'[client]\naccess_key = "AK"\nsecret_key = "{SECRET}"\n',
        f'secret = "{SECRET}"\n',
        f'[[client]]\naccess_key = "AK"\nsecret_key = {SECRET}\n',
        f'[[client]]\naccess_key = "AK"\nsecret_key = "{SECRET}\n',
        f'{GOOD}\n[[client]]\naccess_key = "AK1"\nsecret_key = "{SECRET}"\n',
        "",
    ],
)
def test_the_error_of_a_wrong_clients_file_names_it_and_shows_no_secret(text: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        with_clients(tmp_path, text)
    assert "clients.toml" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("flag", "text", "toml", "wanted"),
    [
        ("/a", "/a", '"/a"', ("/a",)),
        (["/a"], "/a", '["/a"]', ("/a",)),
        (["/a", "/b,c"], None, '["/a", "/b,c"]', ("/a", "/b,c")),
        (Path("/a"), "/a", '"/a"', ("/a",)),
        (None, "/a, /b", '"/a,/b"', ("/a", "/b")),
    ],
)
def test_cache_directories_may_be_several(
    flag: object, text: str | None, toml: str, wanted: tuple[str, ...], tmp_path: Path
) -> None:
    directories = tuple(map(Path, wanted))
    if flag is not None:
        assert load({"cache_dir": flag}, None, {}).cache_dir == directories
    if text is not None:
        assert load({}, None, {"OUTRIDER_CACHE_DIR": text}).cache_dir == directories
    assert load({}, file_with(tmp_path, f"cache_dir = {toml}\n"), {}).cache_dir == directories


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ([], "at least 1"),
        (["/a"] * 65, "at most 64"),
        (["/a", "memory"], "--cache-dir memory stands alone"),
        (["/a", ""], "must not be empty"),
    ],
)
def test_cache_directories_that_make_no_sense(wrong: list[str], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        load({"cache_dir": wrong}, None, {})
