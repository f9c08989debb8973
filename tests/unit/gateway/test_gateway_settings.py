"""What the gateway's variables take."""

from __future__ import annotations

import pytest

from inferflux.common.settings import load
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
