"""The certificates of the webhook over the years: no API server that lags behind refuses one, whatever is renewed, lost
or written by another operator at the same time."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from outrider.adapters.kubernetes.certificates import X509Certifier
from outrider.core.operator.certificates import AUTHORITY_S, BACKDATED_S, DAY_S, SERVER_S, SETTLE_S, Issued
from outrider.engine.operator.certificate_keeper import CertificateKeeper
from outrider.operator_ports import ConflictError, KubeError
from tests.support.fake_kube import CONFIGURATION, HOST, NAME, SECRET, FakeKube, configuration

BEGIN = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
STEP_S = 10.0


class World:
    """An API server and its operators. One time for all of them."""

    def __init__(self, *, operators: int = 1) -> None:
        self.now = BEGIN
        self.kube = FakeKube()
        self.kube.put(configuration())
        self.shown: list[list[Issued]] = [[] for _ in range(operators)]
        self.operators = [self.started(shown) for shown in self.shown]

    def started(self, shown: list[Issued]) -> CertificateKeeper:
        clock = lambda: self.now  # noqa: E731
        return CertificateKeeper(self.kube, X509Certifier(), shown.append, name=NAME, monotonic=clock, wall_clock=clock)

    async def round(self, after_s: float = STEP_S) -> None:
        self.now += after_s
        for operator in self.operators:
            await operator.step()

    def secret(self) -> dict[str, str]:
        return {
            name: base64.b64decode(part).decode()
            for name, part in self.kube.objects[SECRET, f"{NAME}-ca"]["data"].items()
        }

    def authorities(self) -> list[str]:
        return self.secret()["ca.crt"].split("-----END CERTIFICATE-----\n")[:-1]


def accepts(bundle: str, server: Issued, now: float) -> bool:
    """Whether an API server connects, which has this bundle."""
    if not bundle:
        return False
    verifier = (
        PolicyBuilder()
        .store(Store(x509.load_pem_x509_certificates(bundle.encode())))
        .time(datetime.fromtimestamp(now, UTC))
        .build_server_verifier(x509.DNSName(HOST))
    )
    try:
        verifier.verify(x509.load_pem_x509_certificate(server.certificate.encode()), [])
    except VerificationError:
        return False
    return True


async def test_the_first_round_makes_all_that_the_api_server_needs(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    assert not world.operators[0].is_ready
    with caplog.at_level("INFO"):
        await world.round()
    ends = [getattr(record, "ends", None) for record in caplog.records]
    wanted = [
        datetime.fromtimestamp(world.now + lasts_s, UTC).date().isoformat() for lasts_s in (AUTHORITY_S, SERVER_S)
    ]
    assert ends[:2] == wanted
    assert world.operators[0].is_ready
    [bundle], [[server]] = world.kube.bundles(), world.shown
    assert accepts(bundle, server, world.now)
    # The clock of an API server may be half an hour behind.
    assert accepts(bundle, server, world.now - 1800)
    assert set(world.secret()) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    world.kube.calls.clear()
    await world.round()
    assert world.kube.calls == [f"get {CONFIGURATION}", f"get {SECRET}"], "nothing is written that is as it should be"


async def test_no_api_server_ever_refuses_over_the_life_of_two_authorities() -> None:
    """Nor does one that still trusts the bundle of ten minutes ago."""
    world = World(operators=2)
    await world.operators[0].step()
    await world.operators[1].step()
    bundles: list[tuple[float, str]] = []
    signers, renewals, fine = set[str](), 0, 0
    until = BEGIN + 15 * 365 * DAY_S
    while world.now < until:
        before = world.secret()
        # Some rounds in a row are looked at where anything was made; else one a month.
        await world.round(60.0 if fine else 30 * DAY_S)
        fine = 15 if world.secret() != before else max(0, fine - 1)
        renewals += world.secret()["tls.crt"] != before["tls.crt"]
        [bundle] = world.kube.bundles()
        bundles.append((world.now, bundle))
        lagging = next(old for at, old in reversed(bundles) if at <= world.now - SETTLE_S or (at, old) == bundles[0])
        for shown in world.shown:
            assert accepts(bundle, shown[-1], world.now)
            assert accepts(lagging, shown[-1], world.now)
            signers.add(shown[-1].issuer)
    assert len(signers) == 3
    assert renewals >= 20
    assert len(world.authorities()) <= 2


def due_after(made: float, lasts_s: float) -> float:
    """When a certificate that was made then is renewed."""
    return made - BACKDATED_S + (lasts_s + BACKDATED_S) * 2 / 3


async def test_a_new_authority_signs_only_when_it_has_been_trusted_for_a_while() -> None:
    world = World()
    await world.operators[0].step()
    [[first]] = world.shown
    new_at = due_after(BEGIN, AUTHORITY_S) + 1
    # The server's certificate is due a few minutes after the authority.
    world.now = new_at + SETTLE_S / 2 - due_after(0, SERVER_S)
    await world.operators[0].step()
    world.now = new_at
    await world.operators[0].step()
    assert len(world.authorities()) == 2
    assert len(world.shown[0]) == 2
    world.now += SETTLE_S / 2 + 1
    await world.operators[0].step()
    assert [server.issuer for server in world.shown[0]] == [first.issuer] * 3
    # An operator that has just begun has seen nothing of that.
    world.now = due_after(world.now, SERVER_S) + 1
    later: list[Issued] = []
    await world.started(later).step()
    assert later[-1].issuer == first.issuer
    await world.operators[0].step()
    world.now = due_after(world.now, SERVER_S) + 1
    await world.operators[0].step()
    assert world.shown[0][-1].issuer != first.issuer
    assert accepts(world.kube.bundle(), world.shown[0][-1], world.now)


async def test_without_the_right_to_patch_the_configuration_the_old_authority_signs_on() -> None:
    world = World()
    await world.round()
    [[first]] = world.shown
    world.kube.refuses = {f"patch {CONFIGURATION}"}
    world.now += 3650 * DAY_S * 2 / 3
    for _ in range(100):
        with pytest.raises(KubeError):
            await world.round()
    world.now += SERVER_S * 0.7
    with pytest.raises(KubeError):
        await world.round()
    assert world.shown[0][-1].issuer == first.issuer
    assert accepts(world.kube.bundle(), world.shown[0][-1], world.now)
    assert world.operators[0].is_ready


async def test_of_two_operators_that_begin_together_one_makes_the_secret() -> None:
    world = World(operators=2)
    slower: list[Issued] = []
    other = World()
    await other.round()
    made = other.kube.objects[SECRET, f"{NAME}-ca"]
    world.kube.before_write = lambda: world.kube.put(made)
    late = world.started(slower)
    with pytest.raises(ConflictError):
        await late.step()
    assert slower == []
    await late.step()
    assert slower == other.shown[0]
    assert accepts(world.kube.bundle(), slower[0], world.now)


async def test_a_newer_bundle_of_another_operator_is_not_overwritten() -> None:
    world = World()
    await world.round()
    newer = configuration()
    newer["webhooks"][0]["clientConfig"]["caBundle"] = base64.b64encode(b"newer").decode()
    lost = configuration()
    world.kube.put(lost)
    world.kube.before_write = lambda: world.kube.put(newer)
    with pytest.raises(ConflictError):
        await world.round()
    assert world.kube.bundles() == {"newer", ""}


@pytest.mark.parametrize("replaced", [configuration(), None])
async def test_a_bundle_that_something_else_removes_is_put_back(replaced: dict[str, object] | None) -> None:
    world = World()
    await world.round()
    [bundle] = world.kube.bundles()
    if replaced is None:
        del world.kube.objects[CONFIGURATION, NAME]
        await world.round()
        assert not world.operators[0].is_ready
    world.kube.put(configuration())
    await world.round()
    assert world.kube.bundles() == {bundle}
    assert world.operators[0].is_ready
    assert len(world.shown[0]) == 1


@pytest.mark.parametrize(
    "part", ["", "ca.crt", "ca.key", "tls.crt", "tls.key", "all"], ids=["gone", "ca.crt", "ca.key", "crt", "key", "all"]
)
async def test_a_secret_that_is_gone_or_damaged_is_written_again(part: str) -> None:
    """With the same certificates: an operator that has not read it yet shows these."""
    world = World(operators=2)
    await world.round()
    whole, name = world.secret(), (SECRET, f"{NAME}-ca")
    if part:
        kept = world.kube.objects[name]
        kept["data"] = {} if part == "all" else {**kept["data"], part: base64.b64encode(b"nonsense").decode()}
        world.kube.put(kept)
    else:
        del world.kube.objects[name]
    await world.round()
    assert world.secret() == whole
    assert [len(shown) for shown in world.shown] == [1, 1]


async def test_a_damaged_secret_at_the_start_is_made_anew() -> None:
    world = World()
    world.kube.put({"kind": SECRET, "metadata": {"name": f"{NAME}-ca", "labels": {"a": "b"}}, "data": {"own": "eA=="}})
    await world.round()
    assert accepts(world.kube.bundle(), world.shown[0][-1], world.now)
    kept = world.kube.objects[SECRET, f"{NAME}-ca"]
    assert kept["metadata"]["labels"] == {"a": "b"}
    assert world.secret()["own"] == "x"


async def test_an_api_server_that_is_away_changes_nothing() -> None:
    world = World()
    await world.round()
    world.kube.away = True
    with pytest.raises(KubeError):
        await world.round(SERVER_S)
    assert world.operators[0].is_ready
    world.kube.away = False
    await world.round()
    assert accepts(world.kube.bundle(), world.shown[0][-1], world.now)
    assert len(world.shown[0]) == 2
