"""Answers are checked in a process of their own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.constraints.answer_checks import AnswerChecks, CheckerError, CheckError

SMALL = generation_pb2.StructuredConstraint(json_schema='{"type":"integer","maximum":9}')


@pytest.fixture
def checks() -> Iterator[AnswerChecks]:
    made = AnswerChecks(limit_s=60.0)
    yield made
    made.close()


def test_a_wrong_answer_has_a_reason_and_a_right_one_has_none(checks: AnswerChecks) -> None:
    checks.prepare()
    found = [checks.begin(SMALL, answer) for answer in ("7", "10", "{")]
    right, wrong, broken = (check.result() for check in found)
    assert not right
    assert "10 is greater than the maximum of 9" in wrong
    assert "it cannot be read" in broken


def test_a_schema_that_cannot_be_checked_is_named(checks: AnswerChecks) -> None:
    bad = generation_pb2.StructuredConstraint(json_schema='{"type":"nonsense"}')
    assert "cannot be checked" in checks.begin(bad, '"x"').result()
    assert not checks.begin(SMALL, "7").result()


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ('{"$ref":"#"}', "1"),
        ('{"anyOf":[{"$ref":"#"},{"$ref":"#"}]}', "1"),
        ('{"items":{"$ref":"#"}}', "[" * 900 + "]" * 900),
        ('{"items":{"$ref":"#"}}', "[" * 100_000 + "]" * 100_000),
        (
            json.dumps(
                {"$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(2000)}}
                | {"$ref": "#/$defs/0"}
                | {"items": {"$ref": "#"}}
            ).replace("#/$defs/2000", "#"),
            "[" * 900 + "]" * 900,
        ),
    ],
)
def test_a_schema_that_leads_to_itself_ends_one_check_at_most(
    checks: AnswerChecks, schema: str, answer: str
) -> None:
    constraint = generation_pb2.StructuredConstraint(json_schema=schema)
    with contextlib.suppress(CheckError):
        checks.begin(constraint, answer).result(60)
    assert not checks.begin(SMALL, "7").result()


def test_a_process_that_cannot_start_is_no_fault_of_the_answer(
    checks: AnswerChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(CheckerError, match="cannot be started"):
        checks.begin(SMALL, "7").result()


def test_what_is_closed_leaves_no_process(checks: AnswerChecks) -> None:
    assert not checks.begin(SMALL, "7").result()
    process = checks._process
    assert process is not None
    checks.close()
    assert process.poll() is not None
