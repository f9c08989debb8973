"""A setting whose value is in a file: secrets need not be in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferflux.common.process.settings import ServiceSettings, load, misspelt


def test_a_value_comes_from_the_file_that_its_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nats.url").write_text("nats://gateway:secret@nats:4222\n")
    monkeypatch.setenv("INFERFLUX_NATS_URL_FILE", str(tmp_path / "nats.url"))
    assert load(ServiceSettings).nats_url == "nats://gateway:secret@nats:4222"


def test_the_variable_itself_counts_before_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "n").write_text("7")
    monkeypatch.setenv("INFERFLUX_QUEUE_LIMIT_FILE", str(tmp_path / "n"))
    assert load(ServiceSettings).queue_limit == 7
    monkeypatch.setenv("INFERFLUX_QUEUE_LIMIT", "8")
    assert load(ServiceSettings).queue_limit == 8


def test_a_variable_that_is_empty_leaves_it_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.key").write_text("k" * 16)
    monkeypatch.setenv("INFERFLUX_SERVICE_KEY", "")
    monkeypatch.setenv("INFERFLUX_SERVICE_KEY_FILE", str(tmp_path / "service.key"))
    assert load(ServiceSettings).service_key.get_secret_value() == "k" * 16


def test_a_file_that_cannot_be_read_stops_the_start_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFERFLUX_REDIS_URL_FILE", str(tmp_path / "none"))
    with pytest.raises(SystemExit) as ended:
        load(ServiceSettings)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("INFERFLUX_REDIS_URL_FILE: cannot read ")
    assert said.count("\n") == 1


def test_the_name_of_a_file_is_no_slip_of_the_hand() -> None:
    assert misspelt(ServiceSettings, ["INFERFLUX_NATS_URL_FILE", "INFERFLUX_TOKENS_MAX_AGE_S_FILE"]) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"INFERFLUX_TLS_CERT": "a.pem"}, "INFERFLUX_TLS_CERT and INFERFLUX_TLS_KEY go together"),
        ({"INFERFLUX_TLS_KEY": "a.key"}, "INFERFLUX_TLS_CERT and INFERFLUX_TLS_KEY go together"),
        ({"INFERFLUX_TLS_CLIENT_CA": "ca.pem"}, "INFERFLUX_TLS_CLIENT_CA needs INFERFLUX_TLS_CERT"),
    ],
)
def test_half_of_tls_is_no_tls(
    given: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit):
        load(ServiceSettings)
    assert said in capsys.readouterr().err
