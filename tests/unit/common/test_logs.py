"""Log lines for people and for machines."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from inferflux.common.process import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logs.clear_request()
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_json_line_has_the_service_the_request_and_the_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.configure("gateway", "info", "json")
    logs.bind_request(request_id="r1")
    log = logs.get()
    log.debug("unseen")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("it broke", tokens=3)
    line = json.loads(capsys.readouterr().err)
    assert (line["service"], line["request_id"], line["tokens"]) == ("gateway", "r1", 3)
    assert (line["event"], line["level"]) == ("it broke", "error")
    assert line["exception"][0]["exc_type"] == "ValueError"


def test_a_console_line_reads_as_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("worker", "debug", "console")
    logs.get().info("loaded the model", seconds=1.5)
    line = capsys.readouterr().err
    assert "loaded the model" in line
    assert "seconds=1.5" in line


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_a_key_that_came_where_none_belongs_is_in_no_line(
    capsys: pytest.CaptureFixture[str], fmt: str
) -> None:
    key = f"ifx_{'Qa_-9' * 9}"[:47]
    logs.configure("gateway", "debug", fmt)
    logs.get().debug(f"no path /v1/{key}", message=f"there is no model {key!r}", fields=[{"model": key}])
    logging.getLogger("some.library").warning("refused %s", key)
    said = capsys.readouterr().err
    assert key not in said
    assert said.count("ifx_...") == 4


def test_libraries_log_from_warning_up_in_the_same_format(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("worker", "debug", "json")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("careful: %s", "x")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["logger"], line["service"]) == ("careful: x", "some.library", "worker")


def test_a_traceback_does_not_tell_what_variables_held(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("policy", "info", "json")
    credential = "ifx_" + "s" * 43
    try:
        raise ValueError(len(credential))
    except ValueError:
        logs.get().exception("it broke")
    line = capsys.readouterr().err
    assert json.loads(line)["exception"][0]["frames"]
    assert "sss" not in line


@pytest.mark.parametrize("fmt", ["console", "json"])
def test_a_disk_that_is_full_under_the_log_raises_nowhere(monkeypatch: pytest.MonkeyPatch, fmt: str) -> None:
    full = open("/dev/full", "w", buffering=1)  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stderr", full)
    logs.configure("gateway", "info", fmt)
    logs.get().info("lost")
    logging.getLogger("some.library").warning("lost as well")
    with contextlib.suppress(OSError):
        full.close()


def test_services_start_without_loading_rich() -> None:
    code = (
        "import sys, inferflux.common.process.logs\n"
        "assert 'rich' not in sys.modules\n"
        "import rich.console\n"  # inferctl uses both
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
