"""Published schemas are taken whole: valid instances are answers, and no invalid one is."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.json_schemas import PATH, Case, cases, judge, table

# Every 29th: 60 of 1,738.
SAMPLE = [*cases()][::29] if PATH.exists() else []


@pytest.mark.skipif(not PATH.exists(), reason=f"{PATH} is not there")
def test_the_sample_has_schemas_of_every_kind() -> None:
    assert len(SAMPLE) == 60
    assert len({case.source for case in SAMPLE}) >= 12


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name[:60]) for case in SAMPLE])
async def test_a_published_schema_is_taken_and_decides_as_its_instances_say(case: Case) -> None:
    verdict = await judge(case)
    assert not verdict.refusal
    assert (verdict.unspelled, verdict.denied, verdict.missed) == ([], [], [])


@pytest.mark.parametrize(
    ("schema", "instance", "is_valid", "name"),
    [
        ({"type": "integer"}, 3, True, "let_through"),
        ({"type": "integer"}, "3", False, "by_mask"),
        ({"type": "array", "uniqueItems": True}, [3, 3], False, "by_check"),
        ({"type": "integer"}, "3", True, "unspelled"),
        ({"type": "array", "uniqueItems": True}, [3, 3], True, "denied"),
        ({"type": "integer"}, 3, False, "missed"),
    ],
)
async def test_each_way_that_an_instance_may_go_is_told_apart(
    schema: Any, instance: Any, is_valid: bool, name: str
) -> None:
    verdict = await judge(Case("one", schema, [(instance, is_valid)]))
    ways = ("let_through", "unspelled", "denied", "by_mask", "by_check", "missed")
    assert [way for way in ways if getattr(verdict, way)] == [name]


async def test_a_refusal_is_told_and_counted() -> None:
    refused, taken = [await judge(Case(name, schema, ())) for name, schema in (("a", False), ("b", True))]
    assert "nothing matches" in refused.refusal
    assert table([refused, taken]).splitlines()[-1].startswith("| all | 2 | 1 (50.0%) | 1 |")


async def test_properties_are_spelled_in_the_schemas_order_and_numbers_plainly() -> None:
    schema = {
        "properties": {"b": {"type": "integer"}, "a": {"type": "number", "minimum": 0}},
        "required": ["c"],
    }
    verdict = await judge(Case("one", schema, [({"d": "é", "c": None, "a": 1e-7, "b": 2.0}, True)]))
    assert verdict.let_through == 1
