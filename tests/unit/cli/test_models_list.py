"""`inferctl models list` and `inferctl models` are the same question."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from inferflux.cli.app import app


@pytest.mark.parametrize("command", [["models"], ["models", "list"]])
def test_both_spellings_ask_the_gateway(command: list[str], tmp_path: Path) -> None:
    env = dict.fromkeys((name for name in os.environ if name.startswith("INFERFLUX_")), None)
    result = CliRunner().invoke(app, [*command, "--state-dir", str(tmp_path)], env=env)
    # No stack runs there: what either says of it is what it would have asked.
    assert result.exception is not None
    assert "inferctl up" in str(result.exception), result.exception
