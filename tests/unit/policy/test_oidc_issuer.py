"""Issuers as the environment names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inferflux.common.process.settings import load
from inferflux.policy.settings import PolicySettings

VARIABLE = "INFERFLUX_POLICY_OIDC_ISSUERS"
LEAST = {"issuer": "https://idp.example.com", "audiences": ["inferflux"], "tenant": "acme"}


def test_there_are_none_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert load(PolicySettings).oidc_issuers == ()
    monkeypatch.setenv(VARIABLE, "")
    assert load(PolicySettings).oidc_issuers == ()


def test_they_come_from_the_variable_or_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps([LEAST]))
    (issuer,) = load(PolicySettings).oidc_issuers
    assert (issuer.issuer, issuer.audiences, issuer.tenant) == (
        "https://idp.example.com",
        ("inferflux",),
        "acme",
    )
    assert issuer.algorithms == ("RS256", "ES256")
    assert issuer.well_known("jwks.json") == "https://idp.example.com/.well-known/jwks.json"
    (tmp_path / "issuers.json").write_text(json.dumps([LEAST | {"tenant": "blue"}]))
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv(f"{VARIABLE}_FILE", str(tmp_path / "issuers.json"))
    (issuer,) = load(PolicySettings).oidc_issuers
    assert issuer.tenant == "blue"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"issuer": ""}, "[0].issuer "),
        ({"issuer": "idp.example.com"}, "[0].issuer "),
        ({"issuer": "https://user:secret@idp.example.com"}, "[0].issuer "),
        ({"audiences": []}, "[0].audiences "),
        ({"audiences": [""]}, "[0].audiences[0] "),
        ({"audiences": None}, "[0].audiences must be set"),
        ({"algorithms": ["HS256"]}, "[0].algorithms[0] "),
        ({"algorithms": ["none"]}, "[0].algorithms[0] "),
        ({"algorithms": []}, "[0].algorithms "),
        ({"jwks_url": "file:///etc/passwd"}, "[0].jwks_url "),
        ({"keys_at": "dns"}, "[0].keys_at "),
        ({"leeway_s": 301}, "[0].leeway_s "),
        ({"tenant": "Acme Corp"}, "[0].tenant "),
        ({"tenant": ""}, "[0] either tenant or tenant_claim must be set"),
        ({"tenant_claim": "org"}, "[0] either tenant or tenant_claim must be set"),
        ({"tenants": {"a": "b"}}, "[0] tenants needs tenant_claim"),
        ({"tenant": None, "tenant_claim": "org", "tenants": {"a": "B"}}, "[0].tenants.a "),
        ({"roles": {"a": ["user"]}}, "[0] roles and roles_claim go together"),
        ({"roles_claim": "groups"}, "[0] roles and roles_claim go together"),
        ({"roles_claim": "groups", "roles": {"a": ["No Role"]}}, "[0].roles.a "),
        ({"default_roles": ["No Role"]}, "[0].default_roles "),
        ({"allowed_scopes": ["root"]}, "[0].allowed_scopes[0] "),
        ({"models": ["a*b"]}, "[0].models "),
        ({"worker_pools": ["a b"]}, "[0].worker_pools "),
        ({"max_priority": 101}, "[0].max_priority "),
        ({"cache_scope": "a b"}, "[0].cache_scope "),
        ({"audience": "inferflux"}, "[0].audience is not known"),
    ],
)
def test_a_wrong_field_stops_the_start_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    fields = {name: value for name, value in (LEAST | changes).items() if value is not None}
    monkeypatch.setenv(VARIABLE, json.dumps([fields]))
    with pytest.raises(SystemExit):
        load(PolicySettings)
    (line, *_) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{VARIABLE}: {said}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("https://idp.example.com", "must be a JSON list"),
        ("{", "must be a JSON list"),
        ("{}", "must be a JSON list"),
        ('["https://idp.example.com"]', "[0] must be a JSON object"),
        (json.dumps([LEAST, LEAST]), "an issuer is there twice"),
    ],
)
def test_what_is_no_list_of_issuers_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str, said: str
) -> None:
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(SystemExit):
        load(PolicySettings)
    assert capsys.readouterr().err.startswith(f"{VARIABLE}: {said}")
