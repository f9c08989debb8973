"""Published JSON schemas with instances: what is taken, what masks enforce, and what the check stops.

    python -m benchmarks.json_schemas [--failures] [NAME ...]

The schemas are ../shared/data/json-schemas/schemas.jsonl, a part of MaskBench. Each is read, compiled and
checked as a gateway and an engine do it, with a vocabulary of bytes. Instances are spelled without blanks,
their properties in an order of the schema. NAME: only schemas whose names begin so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.text.constraints.checking import ConstraintError, check_of
from inferflux.common.text.constraints.compiling import grammar_of, why_failed
from inferflux.common.text.constraints.schema import NOTHING_MATCHES
from inferflux.gateway.request.constraints import Constraints
from inferflux.v1 import generation_pb2, model_pb2

Json = Any

PATH = Path(__file__).parents[2] / "shared/data/json-schemas/schemas.jsonl"
_SOURCE = re.compile(r"Github_[a-z]+|[A-Za-z0-9]+")
# Of one object, and tokens of all tries of an instance.
_MOST_ORDERS, _MOST_TOKENS = 8, 500_000


@dataclass(frozen=True, slots=True)
class Case:
    """A schema with instances, and whether each is valid."""

    name: str
    schema: Json
    instances: Sequence[tuple[Json, bool]]

    @property
    def source(self) -> str:
        found = _SOURCE.match(self.name)
        return found[0] if found else self.name


@dataclass(slots=True)
class Verdict:
    """The result for a schema and its instances.

    Attributes:
        refusal: why the schema is not taken; "" if it is.
        let_through: valid instances that are answers.
        unspelled: valid instances that the mask stops, each with how far it was spelled.
        denied: valid instances that the mask lets through and the check does not, with what the check says.
        by_mask, by_check: how many invalid instances each stops.
        missed: invalid instances that are answers.
    """

    case: Case
    refusal: str = ""
    unenforced: Sequence[str] = ()
    let_through: int = 0
    unspelled: list[str] = field(default_factory=list)
    denied: list[str] = field(default_factory=list)
    by_mask: int = 0
    by_check: int = 0
    missed: list[str] = field(default_factory=list)


def cases() -> Iterator[Case]:
    """All of them, in the order of the file."""
    with PATH.open(encoding="utf-8") as lines:
        for line in lines:
            read = json.loads(line)
            instances = [(test["data"], bool(test["valid"])) for test in read["tests"]]
            yield Case(read["name"], read["schema"], instances)


async def judge(case: Case) -> Verdict:
    """Read, compile and check as a gateway and an engine do it."""
    verdict = Verdict(case)
    params = generation_pb2.GenerationParams()
    params.constraint.json_schema = json.dumps(case.schema)
    card = model_pb2.ModelCard(name="bytes", digest="bytes", can_constrain=True)
    try:
        held = await Constraints(_Compiler()).checked(params, card)
    except InvalidArgument as error:
        verdict.refusal = error.message
        return verdict
    verdict.unenforced = [str(each) for each in held.unenforced]
    check, matcher = check_of(held.params.constraint), _matcher(held.params.constraint)
    orders = [*_orders(json.loads(held.params.constraint.json_schema))]
    for instance, is_valid in case.instances:
        speller = _Speller(matcher.deep_copy(), orders)
        is_spelled = speller.spells(instance)
        why = check(speller.text) if is_spelled else ""
        if is_valid and not is_spelled:
            verdict.unspelled.append(speller.furthest[-60:])
        elif is_valid and why:
            verdict.denied.append(why)
        elif is_valid:
            verdict.let_through += 1
        elif not is_spelled:
            verdict.by_mask += 1
        elif why:
            verdict.by_check += 1
        else:
            verdict.missed.append(speller.text)
    return verdict


class _Compiler:
    async def compile(
        self, _digest: str, constraint: generation_pb2.StructuredConstraint, *, field: str
    ) -> None:
        try:
            _matcher(constraint)
        except ConstraintError as error:
            raise InvalidArgument(str(error), field=field, reason="BAD_CONSTRAINT") from None


@cache
def _vocabulary() -> LLTokenizer:
    return LLTokenizer("byte")


def _matcher(constraint: generation_pb2.StructuredConstraint) -> LLMatcher:
    matcher = LLMatcher(
        _vocabulary(), grammar_of(constraint), log_level=0, limits=LLParserLimits(verbose_errors=False)
    )
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error() or not any(mask):
        raise ConstraintError(why_failed(matcher) if matcher.is_error() else NOTHING_MATCHES)
    return matcher


def _orders(schema: Json) -> Iterator[list[str]]:
    """The names of each object of a schema as answers have them: listed ones, then other required ones."""
    if isinstance(schema, list):
        for one in schema:
            yield from _orders(one)
    if not isinstance(schema, dict):
        return
    listed, required = schema.get("properties"), schema.get("required")
    if isinstance(listed, dict) or isinstance(required, list):
        yield [*(listed or ()), *(name for name in required or () if name not in (listed or ()))]
    for one in schema.values():
        yield from _orders(one)


class _Speller:
    """Spells an instance in a way that a mask lets through, if it finds one.

    Attributes:
        text: as far as it is spelled.
        furthest: the longest text that was tried.
    """

    def __init__(self, matcher: LLMatcher, orders: Sequence[Sequence[str]]) -> None:
        self._matcher, self._orders = matcher, orders
        self._left = _MOST_TOKENS
        self._said = b""
        self._furthest = b""

    @property
    def text(self) -> str:
        return self._said.decode()

    @property
    def furthest(self) -> str:
        return self._furthest.decode("utf-8", "replace")

    def spells(self, instance: Json) -> bool:
        return self._value(instance) and self._matcher.is_accepting()

    def _value(self, value: Json) -> bool:
        if isinstance(value, dict):
            return any(self._object(value, order) for order in self._orders_of(value))
        if not isinstance(value, list):
            return any(map(self._say, _spellings(value)))
        begin = len(self._said)
        for i, one in enumerate(value):
            if not (self._say("," if i else "[") and self._value(one)):
                return self._take_back(begin)
        return self._say("]" if value else "[]") or self._take_back(begin)

    def _object(self, value: dict[str, Json], order: Sequence[str]) -> bool:
        """In an order; a name that cannot come now may come later."""
        begin, waiting = len(self._said), list(order)
        while waiting:
            head = "{" if len(waiting) == len(order) else ","
            found = next((n for n in waiting if self._member(head, n, value[n])), None)
            if found is None:
                return self._take_back(begin)
            waiting.remove(found)
        return self._say("}" if order else "{}") or self._take_back(begin)

    def _member(self, head: str, name: str, value: Json) -> bool:
        begin = len(self._said)
        named = any(self._say(f"{head}{spelled}:") for spelled in _spellings(name))
        return (named and self._value(value)) or self._take_back(begin)

    def _orders_of(self, value: dict[str, Json]) -> Iterator[list[str]]:
        """Ways to order an object's properties: those of the schema's objects that have most of them."""
        merged = {name: i for i, name in enumerate(dict.fromkeys(n for o in self._orders for n in o))}
        fitting = sorted(self._orders, key=lambda order: -len(value.keys() & set(order)))
        tried: list[list[str]] = []
        for order in [*fitting[: _MOST_ORDERS - 2], [*merged], [*value]]:
            rank = {name: i for i, name in enumerate(order)}
            names = sorted(value, key=lambda name: rank.get(name, len(rank) + merged.get(name, len(merged))))
            if names not in tried:
                tried.append(names)
                yield names

    def _say(self, text: str) -> bool:
        data = text.encode("utf-8", "surrogatepass")
        self._left -= len(data)
        if self._left < 0:
            return False
        taken = self._matcher.try_consume_tokens(list(data))
        self._said += data[:taken]
        if len(self._said) > len(self._furthest):
            self._furthest = self._said
        return taken == len(data) or self._take_back(len(self._said) - taken)

    def _take_back(self, length: int) -> bool:
        """Unsay what is beyond a length; always false."""
        if len(self._said) > length:
            self._matcher.rollback(len(self._said) - length)
            self._said = self._said[:length]
        return False


def _spellings(value: Json) -> list[str]:
    """Spellings of a number or a text: as JSON has it, then plainly."""
    told = [json.dumps(value, ensure_ascii=False)]
    if isinstance(value, float):
        told.append(format(Decimal(repr(value)), "f"))
        if value.is_integer():
            told.append(str(int(value)))
    elif isinstance(value, str):
        told.append(json.dumps(value))
    return list(dict.fromkeys(told))


def table(verdicts: Sequence[Verdict]) -> str:
    """A row for each source, and for all."""
    rows = [
        "| source | schemas | accepted | enforced whole | valid let through | invalid stopped by mask |"
        " by the check | missed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    by_source = sorted(verdicts, key=lambda verdict: verdict.case.source)
    groups = [(name, [*of]) for name, of in groupby(by_source, lambda verdict: verdict.case.source)]
    for name, of in [*groups, ("all", [*verdicts])]:
        taken = [each for each in of if not each.refusal]
        n_whole = sum(not each.unenforced for each in taken)
        n_through = sum(each.let_through for each in taken)
        n_valid = sum(is_valid for each in taken for _, is_valid in each.case.instances)
        by_mask, by_check = sum(each.by_mask for each in taken), sum(each.by_check for each in taken)
        n_missed = sum(len(each.missed) for each in taken)
        rows.append(
            f"| {name} | {len(of)} | {len(taken)} ({len(taken) / len(of):.1%}) | {n_whole} |"
            f" {n_through} of {n_valid} | {by_mask} | {by_check} | {n_missed} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of schemas' names")
    parser.add_argument("--failures", action="store_true", help="list what is not as it should be")
    arguments = parser.parse_args()
    if not PATH.exists():
        sys.exit(f"{PATH} is not there")
    wanted = [case for case in cases() if case.name.startswith(tuple(arguments.names) or "")]
    verdicts = []
    for i, case in enumerate(wanted):
        verdicts.append(asyncio.run(judge(case)))
        sys.stderr.write(f"\r{i + 1} of {len(wanted)}")
    sys.stderr.write("\n")
    for verdict in verdicts if arguments.failures else ():
        told = {"refused": [verdict.refusal] if verdict.refusal else []}
        told |= {"mask stops": verdict.unspelled, "check stops": verdict.denied, "missed": verdict.missed}
        for what, texts in told.items():
            for text in texts:
                sys.stdout.write(f"{verdict.case.name}: {what}: {text}\n")
    sys.stdout.write(table(verdicts) + "\n")


if __name__ == "__main__":
    main()
