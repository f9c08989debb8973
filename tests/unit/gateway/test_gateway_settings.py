"""What the gateway's variables take."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.certificates import Certificates

from inferflux.common.process.settings import load
from inferflux.common.process.tls import ServerTls
from inferflux.gateway.settings import GatewaySettings


@pytest.mark.parametrize("name", ["ANSWER_CACHE_BYTES", "ANSWER_CACHE_TENANT_BYTES"])
def test_the_answer_cache_is_sized_with_units_as_the_workers_memory_is(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"INFERFLUX_GATEWAY_{name}", "10MB")
    assert getattr(GatewaySettings(), name.lower()) == 10_000_000


@pytest.mark.parametrize("value", ["10 apples", "-1", "lots"])
def test_a_size_that_is_none_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES", value)
    with pytest.raises(SystemExit):
        load(GatewaySettings)
    assert "INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "proxies"),
    [("", []), ("10.0.0.7", ["10.0.0.7"]), (" 10.0.0.0/8, ::1 ", ["10.0.0.0/8", "::1"])],
)
def test_trusted_proxies_are_addresses_and_networks(
    monkeypatch: pytest.MonkeyPatch, value: str, proxies: list[str]
) -> None:
    monkeypatch.setenv("INFERFLUX_GATEWAY_HTTP_TRUSTED_PROXIES", value)
    assert load(GatewaySettings).trusted_proxies == proxies


@pytest.mark.parametrize("value", ["*", "proxy.example", "10.0.0.0/33", "10.0.0.1;10.0.0.2"])
def test_any_other_proxy_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("INFERFLUX_GATEWAY_HTTP_TRUSTED_PROXIES", value)
    with pytest.raises(SystemExit):
        load(GatewaySettings)
    assert "INFERFLUX_GATEWAY_HTTP_TRUSTED_PROXIES" in capsys.readouterr().err


def test_clients_see_the_certificate_that_is_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_services = Certificates.made(tmp_path / "services")
    of_clients = Certificates.made(tmp_path / "clients")
    assert load(GatewaySettings).server_tls is None
    for prefix, files in (
        ("INFERFLUX_TLS", of_services.server("gateway", is_mutual=True)),
        ("INFERFLUX_GATEWAY_TLS", of_clients.server("gateway", is_mutual=True)),
    ):
        monkeypatch.setenv(f"{prefix}_CERT", str(files.cert))
        monkeypatch.setenv(f"{prefix}_KEY", str(files.key))
        monkeypatch.setenv(f"{prefix}_CLIENT_CA", str(files.ca))
    settings = load(GatewaySettings)
    assert settings.server_tls is not None
    assert settings.server_tls.files.paths() == of_clients.server("gateway", is_mutual=True).paths()
    for name in ("CERT", "KEY", "CLIENT_CA"):
        monkeypatch.delenv(f"INFERFLUX_GATEWAY_TLS_{name}")
    settings = load(GatewaySettings)
    assert settings.server_tls is not None
    # Clients prove themselves with keys: the CA of services is not asked of them.
    assert settings.server_tls.files == of_services.server("gateway")


@pytest.mark.parametrize(
    ("value", "plain", "over_tls"), [("", True, False), ("on", True, True), ("off", False, False)]
)
def test_reflection_is_off_over_tls_unless_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, plain: bool, over_tls: bool
) -> None:
    if value:
        monkeypatch.setenv("INFERFLUX_GRPC_REFLECTION", value)
    settings = load(GatewaySettings)
    tls = ServerTls(Certificates.made(tmp_path).server())
    assert (settings.has_reflection(None), settings.has_reflection(tls)) == (plain, over_tls)


@pytest.mark.parametrize(
    "value", ["policy:50052", "[::1]:50052", "10.0.0.1:1,10.0.0.2:2", "10.0.0.1:1 , 10.0.0.2:2"]
)
def test_policy_is_at_one_address_or_at_several(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("INFERFLUX_POLICY_ADDRESS", value)
    assert load(GatewaySettings).policy_address == value


@pytest.mark.parametrize(
    "value", ["", ",", "policy", "a:1,b:2", "10.0.0.1:1,policy:2", "10.0.0.1:1,10.0.0.2:0"]
)
def test_addresses_of_policy_that_cannot_be_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("INFERFLUX_POLICY_ADDRESS", value)
    with pytest.raises(SystemExit):
        load(GatewaySettings)
    assert "INFERFLUX_POLICY_ADDRESS" in capsys.readouterr().err


def test_with_tls_policy_has_one_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("INFERFLUX_TLS_CA", str(Certificates.made(tmp_path).ca))
    monkeypatch.setenv("INFERFLUX_POLICY_ADDRESS", "10.0.0.1:1,10.0.0.2:2")
    with pytest.raises(SystemExit):
        load(GatewaySettings)
    assert "INFERFLUX_POLICY_ADDRESS" in capsys.readouterr().err
