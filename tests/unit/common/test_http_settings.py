"""What the environment may say about HTTP servers that services ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.http.http_settings import HttpClientSettings
from inferflux.common.process.settings import load


@pytest.mark.parametrize("value", ["10.0.0.1/8", "localhost", "10.0.0.0/8,*"])
def test_a_network_that_is_none_stops_the_start_and_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("INFERFLUX_HTTP_ALLOWED_NETWORKS", value)
    with pytest.raises(SystemExit):
        load(HttpClientSettings)
    said = capsys.readouterr().err
    assert said.startswith("INFERFLUX_HTTP_ALLOWED_NETWORKS: ")
    assert value.rpartition(",")[2] in said


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_a_ca_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("INFERFLUX_HTTP_CA", str(path))
    with pytest.raises(InvalidArgument, match="INFERFLUX_HTTP_CA: cannot use") as caught:
        load(HttpClientSettings).http_client()
    assert caught.value.field == "INFERFLUX_HTTP_CA"


async def test_without_anything_set_there_is_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INFERFLUX_HTTP_ALLOWED_NETWORKS", "INFERFLUX_HTTP_CA"):
        monkeypatch.setenv(name, "")
    await load(HttpClientSettings).http_client().aclose()
