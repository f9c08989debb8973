"""Rules of guardrails as files have them."""

from __future__ import annotations

import json

import pytest

from inferflux.cli.operate.guardrail_rules import rules_of_json, texts_of
from inferflux.cli.reach.command import as_dict
from inferflux.cli.reach.errors import CommandError
from inferflux.v1 import guardrails_pb2

Rules = guardrails_pb2.GuardrailRules


def test_a_list_has_a_text_a_line() -> None:
    assert texts_of("\ufeffone\r\n\n  two words \nthré\n".encode(), "f") == ["one", "two words", "thré"]
    with pytest.raises(CommandError, match="UTF-8"):
        texts_of(b"\xff", "f")


def test_rules_are_read_as_they_were_printed() -> None:
    rules = Rules(blocked=[guardrails_pb2.BlockedText(text="ä", is_word=True)], patterns=["x"], max_tokens=7)
    whole = guardrails_pb2.Guardrails(tenant="acme", rules=rules, version=1_700_000_000_000)
    whole.changed_at.FromSeconds(1)
    for message in (whole, rules):
        assert rules_of_json(json.dumps(as_dict(message)).encode(), "f") == rules


@pytest.mark.parametrize("data", [b"", b"[]", b'{"rules": 1}', b'{"blokced": []}', b'{"max_tokens": -1}'])
def test_what_are_no_rules_is_refused(data: bytes) -> None:
    with pytest.raises(CommandError, match=r"rules\.json"):
        rules_of_json(data, "rules.json")
