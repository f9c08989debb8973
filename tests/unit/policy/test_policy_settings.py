"""What the environment may say to the policy service."""

from __future__ import annotations

import pytest

from inferflux.common.process.settings import load
from inferflux.policy.decide import keys
from inferflux.policy.settings import PolicySettings


def test_the_defaults_serve_on_loopback_without_a_bootstrap_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INFERFLUX_POLICY_LISTEN", raising=False)
    monkeypatch.delenv("INFERFLUX_POLICY_BOOTSTRAP_KEY", raising=False)
    settings = load(PolicySettings)
    assert settings.listen == "127.0.0.1:50052"
    assert settings.bootstrap_key.get_secret_value() == ""
    assert settings.store_timeout_s < 1


def test_a_bootstrap_key_is_taken_from_the_environment_and_kept_out_of_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = keys.generate()
    monkeypatch.setenv("INFERFLUX_POLICY_BOOTSTRAP_KEY", secret)
    settings = load(PolicySettings)
    assert settings.bootstrap_key.get_secret_value() == secret
    assert secret not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "secret"),
    [
        ("INFERFLUX_POLICY_BOOTSTRAP_KEY", "mistyped-key"),
        ("INFERFLUX_POLICY_STORAGE_PASSPHRASE", "mistyped phrase, of several"),
        ("INFERFLUX_AUDIT_KEY", "mistyped-key"),
    ],
)
def test_a_secret_that_is_refused_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, secret: str
) -> None:
    monkeypatch.setenv(variable, secret)
    with pytest.raises(SystemExit):
        load(PolicySettings)
    said = capsys.readouterr().err
    assert said.startswith(f"{variable}: ")
    assert "mistyped" not in said


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("INFERFLUX_POLICY_BOOTSTRAP_KEY", "letmein"),
        ("INFERFLUX_POLICY_STORE_TIMEOUT_S", "0"),
        ("INFERFLUX_POLICY_STORE_TIMEOUT_S", "soon"),
        ("INFERFLUX_POLICY_SETTLED_MEMORY_S", "0"),
    ],
)
def test_a_bad_value_stops_the_start_and_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as caught:
        load(PolicySettings)
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith(f"{variable}: ")
