"""Lines of the audit trail as a terminal gets them."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from inferflux.cli.operate.audit_admin import audit
from inferflux.common.calls.audit.chain import Head, seal


def test_what_a_tenant_has_written_moves_no_terminal_and_adds_no_line(tmp_path: Path) -> None:
    line, _ = seal(Head(), {"event": "call", "tenant": "acme", "model": "\x1b[2J\x9bfake\nline Ünï"}, b"key")
    path = tmp_path / "audit.jsonl"
    path.write_bytes(line)
    printed = CliRunner().invoke(audit, ["tail", str(path)])
    assert printed.exit_code == 0
    assert printed.stdout == "call  acme  \\x1b[2J\\x9bfake\\nline Ünï\n"
