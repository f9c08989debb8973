"""What the environment sets of a service, for a program that asks."""

from __future__ import annotations

import pytest

from inferflux.common.process.settings import ServiceSettings
from inferflux.common.process.settings_report import report

NATS, REDIS = "INFERFLUX_NATS_URL", "INFERFLUX_REDIS_URL"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv(NATS, "nats://one:4222")
    return monkeypatch


def test_variables_and_values_of_a_service_are_told() -> None:
    told = report(ServiceSettings)
    assert {NATS, REDIS, "INFERFLUX_TLS_CERT"} < set(told["variables"])
    assert (told["values"][NATS], told["values"]["INFERFLUX_TLS_CERT"]) == ("nats://one:4222", None)
    assert told["bad"] == []


def test_a_secret_is_not_told(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("INFERFLUX_SERVICE_KEY", "a-secret-of-services")
    assert "a-secret-of-services" not in str(report(ServiceSettings))


def test_bad_values_are_told_one_by_one_and_the_others_count(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("INFERFLUX_QUEUE_LIMIT", "many")
    environment.setenv("INFERFLUX_LOG_LEVEL", "loud")
    environment.setenv(f"{REDIS}_FILE", "/nowhere/redis.url")
    told = report(ServiceSettings)
    assert sorted(line.partition(":")[0] for line in told["bad"]) == [
        "INFERFLUX_LOG_LEVEL",
        "INFERFLUX_QUEUE_LIMIT",
        f"{REDIS}_FILE",
    ]
    assert told["values"][NATS] == "nats://one:4222"
    assert told["values"]["INFERFLUX_QUEUE_LIMIT"] == ServiceSettings.model_fields["queue_limit"].default


def test_values_that_do_not_fit_each_other_are_told_as_they_are_given(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("INFERFLUX_TLS_CERT", "/tls/gateway.pem")
    told = report(ServiceSettings)
    assert ["go together" in line for line in told["bad"]] == [True]
    assert told["values"]["INFERFLUX_TLS_CERT"] == "/tls/gateway.pem"
    assert told["values"][NATS] == "nats://one:4222"
    assert told["values"][REDIS] == "redis://127.0.0.1:6379/0"
