"""What the environment may say about decision backends."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.settings import load
from inferflux.policy.decide.decisions import opening
from inferflux.policy.decide.decisions.opening import open_decisions
from inferflux.policy.settings import PolicySettings

URL = "http://127.0.0.1:8181/v1/data/inferflux/decision"


def settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> PolicySettings:
    for name, value in variables.items():
        monkeypatch.setenv(f"INFERFLUX_POLICY_{name}", value)
    return load(PolicySettings)


def test_policy_decides_alone_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings(monkeypatch)
    opened = open_decisions(chosen, chosen.http_client())
    assert (opened.decisions, opened.work) == (None, None)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"DECISIONS": "builtin,opal"}, "there is no 'opal'"),
        ({"DECISIONS": "builtin,opa,opa", "OPA_URL": URL}, "once"),
        ({"DECISIONS": "opa", "OPA_URL": URL}, "must name 'builtin' too"),
        ({"DECISIONS": ""}, "must name 'builtin' too"),
        ({"DECISIONS": "builtin,opa"}, "INFERFLUX_POLICY_OPA_URL must be set"),
        ({"DECISIONS": "builtin,cedar"}, "INFERFLUX_POLICY_CEDAR_POLICIES must be set"),
        ({"OPA_URL": "127.0.0.1:8181"}, "INFERFLUX_POLICY_OPA_URL"),
        ({"OPA_URL": "http://user:word@opa/v1/data/x"}, "INFERFLUX_POLICY_OPA_URL"),
        ({"OPA_URL": "http://opa:8181/"}, "must name a document"),
        ({"DECISIONS_FAIL_OPEN": "opa"}, "names 'opa', which is no backend"),
        ({"DECISIONS_FAIL_OPEN": "builtin"}, "names 'builtin', which is no backend"),
        ({"DECISION_TIMEOUT_S": "0"}, "INFERFLUX_POLICY_DECISION_TIMEOUT_S"),
        ({"DECISION_CACHE_S": "61"}, "INFERFLUX_POLICY_DECISION_CACHE_S"),
    ],
)
def test_a_bad_value_stops_the_start_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    why: str,
) -> None:
    with pytest.raises(SystemExit) as caught:
        settings(monkeypatch, **variables)
    assert caught.value.code == 2
    assert why in capsys.readouterr().err


def test_opas_token_is_kept_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "hidden" not in repr(settings(monkeypatch, OPA_TOKEN="hidden"))


def test_cedar_without_its_package_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = settings(monkeypatch, DECISIONS="builtin,cedar", CEDAR_POLICIES="/nowhere")
    monkeypatch.setattr(opening, "find_spec", lambda _name: None)
    with pytest.raises(InvalidArgument, match="cedarpy is not installed") as caught:
        open_decisions(wanted, wanted.http_client())
    assert caught.value.field == "INFERFLUX_POLICY_DECISIONS"
