"""What limits call the holder of an issuer's tokens."""

from __future__ import annotations

from typer.testing import CliRunner

from inferflux.cli.app import app
from inferflux.common.contract.callers.credentials import subject_id


def test_the_subject_of_a_token_is_printed_as_limits_name_it() -> None:
    issuer = "https://idp.example.com"
    shown = CliRunner().invoke(app, ["admin", "rate-limit", "subject", issuer, "alice"])
    assert (shown.exit_code, shown.output) == (0, f"key:{subject_id(issuer, 'alice')}\n")
