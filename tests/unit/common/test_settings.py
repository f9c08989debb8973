"""Settings come from the environment, and a bad value names its variable."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError
from pydantic_settings import SettingsConfigDict

from inferflux.common.process.setting_kinds import TargetAddresses
from inferflux.common.process.settings import ServiceSettings, load, misspelt


class WorkerSettings(ServiceSettings):
    model_config = SettingsConfigDict(env_prefix="INFERFLUX_WORKER_", frozen=True)

    slots: int = Field(default=16, ge=1)
    weights: dict[str, float] = Field(default_factory=dict)
    peer: TargetAddresses = "127.0.0.1:50052"


def test_defaults_are_those_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INFERFLUX_NATS_URL", "INFERFLUX_REDIS_URL", "INFERFLUX_QUEUE_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    settings = load(ServiceSettings)
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.stream_limits.queue_limit == 4096
    assert settings.stream_limits.tokens_max_bytes == 128 << 20


def test_common_fields_keep_their_names_in_a_service_with_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERFLUX_NATS_URL", "nats://elsewhere:4222")
    monkeypatch.setenv("INFERFLUX_WORKER_SLOTS", "3")
    monkeypatch.setenv("INFERFLUX_EXIT_WITH_PARENT", "1")
    settings = load(WorkerSettings)
    assert (settings.nats_url, settings.slots) == ("nats://elsewhere:4222", 3)
    assert settings.parent_pid_check is True


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("INFERFLUX_WORKER_SLOTS", "0"),
        ("INFERFLUX_WORKER_SLOTS", "many"),
        ("INFERFLUX_LOG_LEVEL", "loud"),
        ("INFERFLUX_LOG_FORMAT", "xml"),
        ("INFERFLUX_DRAIN_LIMIT_S", "-1"),
        ("INFERFLUX_DRAIN_LIMIT_S", "nan"),
        ("INFERFLUX_QUEUE_LIMIT", "0"),
        ("INFERFLUX_TOKENS_MAX_AGE_S", "0"),
        ("INFERFLUX_NATS_URL", ""),
        ("INFERFLUX_EXIT_WITH_PARENT", "perhaps"),
        ("INFERFLUX_METRICS_LISTEN", "foo"),
        ("INFERFLUX_METRICS_LISTEN", "127.0.0.1:65536"),
        ("INFERFLUX_WORKER_WEIGHTS", "x"),
        ("INFERFLUX_WORKER_WEIGHTS", "[1]"),
        ("INFERFLUX_WORKER_WEIGHTS", '{"acme": "x"}'),
        ("INFERFLUX_WORKER_PEER", "foo"),
        ("INFERFLUX_WORKER_PEER", ":50052"),
        ("INFERFLUX_WORKER_PEER", "policy:0"),
    ],
)
def test_a_bad_value_is_one_line_naming_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as caught:
        load(WorkerSettings)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{variable}: ")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("INFERFLUX_WORKER_SLOTS", "0", "must be greater than or equal to 1 (given: '0')"),
        ("INFERFLUX_WORKER_WEIGHTS", "x", "must be a JSON object (given: 'x')"),
        ("INFERFLUX_METRICS_LISTEN", "foo", "must be host:port (given: 'foo')"),
        ("INFERFLUX_NATS_URL", "", "must have at least 1 character (given: '')"),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "collector",
            "must be a URL without a path, such as http://collector:4317 (given: 'collector')",
        ),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "http://me:se/cret@collector",
            "must be a URL without a path, such as http://collector:4317 (given: 'http://***@collector')",
        ),
    ],
)
def test_a_bad_value_is_told_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit):
        load(WorkerSettings)
    assert capsys.readouterr().err == f"{variable}: {said}\n"


def test_a_variable_that_has_no_default_must_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    class Needy(WorkerSettings):
        model: str

    with pytest.raises(SystemExit):
        load(Needy)
    assert capsys.readouterr().err == "INFERFLUX_WORKER_MODEL: must be set\n"


def test_two_bad_values_are_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERFLUX_WORKER_SLOTS", "x")
    monkeypatch.setenv("INFERFLUX_LOG_LEVEL", "x")
    with pytest.raises(SystemExit):
        load(WorkerSettings)
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_settings_cannot_be_changed() -> None:
    settings = load(WorkerSettings)
    with pytest.raises(ValidationError):
        settings.slots = 3


@pytest.mark.parametrize("value", ["127.0.0.1:0", "[::1]:9090", ":9090", "localhost:9090"])
def test_an_address_to_listen_on_may_leave_out_the_host(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("INFERFLUX_METRICS_LISTEN", value)
    assert load(WorkerSettings).metrics_listen == value


def test_json_of_a_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERFLUX_WORKER_WEIGHTS", '{"acme": 2}')
    assert load(WorkerSettings).weights == {"acme": 2.0}


def test_a_misspelt_variable_is_found_with_the_nearest_name() -> None:
    names = ["INFERFLUX_WORKER_SLOT", "INFERFLUX_WORKER_SLOTS", "INFERFLUX_NATS_URI", "NATS_URL", "PATH"]
    assert misspelt(WorkerSettings, names) == {
        "INFERFLUX_WORKER_SLOT": "INFERFLUX_WORKER_SLOTS",
        "INFERFLUX_NATS_URI": "INFERFLUX_NATS_URL",
    }
