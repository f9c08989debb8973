"""A process that is started with a setting that is gone says so, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.deploy import ROOT

from inferflux.cli.reach.errors import CommandError
from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.process.gone_settings import GONE, refusals
from inferflux.common.process.settings import ServiceSettings, load
from inferflux.gateway.settings import GatewaySettings
from inferflux.policy.settings import PolicySettings
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.worker.settings import WorkerSettings

SERVICES: list[type[ServiceSettings]] = [GatewaySettings, PolicySettings, SchedulerSettings, WorkerSettings]


@pytest.mark.parametrize("service", SERVICES)
def test_a_start_with_settings_that_are_gone_ends_with_a_line_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], service: type[ServiceSettings]
) -> None:
    monkeypatch.setenv("INFERFLUX_GATEWAY_SILENCE_LIMIT_S", "5")
    monkeypatch.setenv("INFERFLUX_SCHEDULER_AGING_S_FILE", "/run/secrets/aging")
    with pytest.raises(SystemExit) as caught:
        load(service)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "INFERFLUX_GATEWAY_SILENCE_LIMIT_S is gone: the value is 900 s",
        "INFERFLUX_SCHEDULER_AGING_S_FILE is gone: waiting for 2 s is worth one level of priority",
    ]


async def test_a_stack_says_so_before_it_starts_a_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("INFERFLUX_POLICY_LEASE_S", "5")
    stack = Stack(StackOptions(state_dir=tmp_path / "state"))
    with pytest.raises(CommandError, match="INFERFLUX_POLICY_LEASE_S is gone: the value is 15 s"):
        await stack.__aenter__()
    assert (stack.processes, (tmp_path / "state").exists()) == ({}, False)


@pytest.mark.parametrize(
    ("service", "name"), list(zip(SERVICES, ["gateway", "policy", "scheduler", "worker"], strict=True))
)
def test_settings_that_do_not_go_together_name_the_service(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    service: type[ServiceSettings],
    name: str,
) -> None:
    monkeypatch.setenv("INFERFLUX_TLS_CERT", "a.pem")
    with pytest.raises(SystemExit):
        load(service)
    lines = capsys.readouterr().err.splitlines()
    assert f"{name}: INFERFLUX_TLS_CERT and INFERFLUX_TLS_KEY go together" in lines


def test_a_variable_that_is_empty_is_as_good_as_unset() -> None:
    assert refusals(dict.fromkeys(GONE, "")) == []


def test_no_service_has_a_setting_that_is_gone() -> None:
    for service in SERVICES:
        prefix = service.model_config.get("env_prefix", "")
        known = {str(f.validation_alias or f"{prefix}{n}".upper()) for n, f in service.model_fields.items()}
        assert not known & set(GONE)


def test_nothing_but_the_changelog_names_a_setting_that_is_gone() -> None:
    named = (ROOT / "CHANGELOG.md").read_text()
    assert [name for name in GONE if f"`{name}`" not in named] == []
    pages = [
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
        *ROOT.glob("*.yml"),
        *ROOT.glob("deploy/**/*.yml"),
    ]
    for page in pages:
        text = page.read_text()
        assert [name for name in GONE if name in text] == [], page
