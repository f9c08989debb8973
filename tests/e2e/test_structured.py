"""Constrained answers through every process: inferctl's flags, refusals, a worker killed in the middle."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import jsonschema_rs
import pytest
from harness.client import Answer, Client, prompt
from harness.inferctl import run

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.contract.errors import InvalidArgument, from_rpc
from inferflux.v1 import generation_pb2, inference_pb2
from inferflux.v1.generation_pb2 import ChoiceConstraint as Choice

pytestmark = pytest.mark.e2e

QUESTION = "Tell me about Ada."
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture
def env(stack: Stack, tmp_path: Path) -> dict[str, str]:
    """Points inferctl at the stack of the test."""
    return {
        "INFERFLUX_ENDPOINT": stack.endpoint,
        "INFERFLUX_API_KEY": stack.api_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


@pytest.fixture
def person(tmp_path: Path) -> str:
    path = tmp_path / "person.json"
    path.write_text(json.dumps(PERSON))
    return str(path)


@pytest.mark.parametrize("sampling", [("--temperature", "0"), ("--temperature", "2", "--seed", "3")])
async def test_an_answer_matches_the_schema_of_a_file(
    env: dict[str, str], person: str, sampling: tuple[str, ...]
) -> None:
    result = await run("chat", *sampling, "--schema", person, "--json", QUESTION, env=env)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["finish_reason"] == "stop"
    assert jsonschema_rs.is_valid(PERSON, json.loads(answer["text"]))


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("--choice", "yes", "--choice", "no"), "yes|no"),
        (("--regex", "[0-9]{4}-[0-9]{2}"), "[0-9]{4}-[0-9]{2}"),
        (("--grammar", "words.gbnf"), "(red|blue) (cat|dog)"),
        (("--grammar", "words.lark"), "(red|blue)!"),
    ],
)
async def test_an_answer_is_what_a_flag_asks_for(
    env: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], pattern: str
) -> None:
    (tmp_path / "words.gbnf").write_text('root ::= color " " ("cat" | "dog")\ncolor ::= "red" | "blue"\n')
    (tmp_path / "words.lark").write_text('start: ("red" | "blue") "!"\n')
    flags = [str(tmp_path / a) if a.startswith("words") else a for a in arguments]
    for command in ("chat", "complete"):
        result = await run(command, "--temperature", "2", *flags, QUESTION, env=env)
        assert result.returncode == 0, result.stderr
        assert re.fullmatch(pattern, result.stdout.rstrip("\n")), result.stdout


async def test_an_object_is_json_or_is_cut_by_its_limit(env: dict[str, str]) -> None:
    arguments = ("chat", "--json-object", "--json", "--max-tokens", "200", "--temperature", "0", QUESTION)
    answer = json.loads((await run(*arguments, env=env)).stdout)
    assert answer["text"].startswith("{")
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["text"]), dict)
    else:
        assert (answer["finish_reason"], answer["completion_tokens"]) == ("length", 200)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"type": "object", "required": ["a"], "properties": {"a": {"not": {}}}}', "no answer satisfies"),
        ("{", "not JSON"),
        ('{"type": "integer", "minimum": 2, "maximum": 1}', "greater than"),
        ("[" * 9000, "nested"),
        (" " * 70_000, "65536"),
    ],
)
async def test_a_schema_that_cannot_be_used_is_refused_and_says_why(
    env: dict[str, str], tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)
    result = await run("chat", "--schema", str(path), QUESTION, env=env)
    assert result.returncode != 0
    assert says in result.stderr
    assert result.stdout == ""


async def test_two_constraints_are_not_taken_at_once(env: dict[str, str], person: str) -> None:
    result = await run("chat", "--schema", person, "--json-object", QUESTION, env=env)
    assert result.returncode == 2
    assert "--schema, --json-object" in " ".join(result.stderr.split())


BOMBS: dict[str, dict[str, Any]] = {
    "params.constraint.choice.texts": {"choice": Choice(texts=[str(i) for i in range(10_000)])},
    "params.constraint.regex": {"regex": "(" * 8000 + ")" * 8000},
    "params.constraint.gbnf": {"gbnf": "(" * 16_000},
    "params.constraint.lark": {"lark": "start: start"},
    "params.constraint.json_schema": {"json_schema": '{"$ref": "#"}'},
}


def constrained(text: str, *, max_tokens: int, **constraint: Any) -> inference_pb2.GenerateRequest:
    request = prompt(text, max_tokens=max_tokens, seed=1)
    request.params.ignore_eos = False
    request.params.constraint.CopyFrom(generation_pb2.StructuredConstraint(**constraint))
    return request


@pytest.mark.parametrize("field", BOMBS)
async def test_a_bomb_is_refused_by_its_field_while_others_are_served(client: Client, field: str) -> None:
    other = asyncio.create_task(client.ask(prompt("Once", max_tokens=8)))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.ask(constrained("Tell", max_tokens=20, **BOMBS[field]))
    error = from_rpc(refused.value)
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    assert (await other).terminal is not None


FORCED = "0123456789" * 40
NUMBERS = {"type": "array", "items": {"type": "integer", "maximum": 9999}, "minItems": 60, "maxItems": 60}


async def test_a_killed_workers_constrained_answers_go_on_elsewhere() -> None:
    """Texts are compared where the constraint leaves no choice: what is prefilled in larger steps than it was
    generated in may have other last bits."""
    requests = [constrained(f"Number {i}:", max_tokens=900, regex=FORCED) for i in range(2)]
    requests += [constrained(f"List {i}:", max_tokens=900, json_schema=json.dumps(NUMBERS)) for i in range(2)]
    async with Stack(StackOptions(workers=2, slots=8, threads=1, restarts=False)) as stack:
        client = Client(stack.endpoint, stack.api_key)
        answers = [Answer() for _ in requests]
        tasks = [
            asyncio.create_task(client.ask(request, request_id=f"long-{i}", answer=answers[i]))
            for i, request in enumerate(requests)
        ]
        async with asyncio.timeout(30):
            for answer in answers:
                await answer.first_token.wait()
        await stack.kill(answers[0].worker_ids[0])
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        assert any(len(answer.epochs) > 1 for answer in answers), "the killed worker had none of them"
        assert [answer.text for answer in answers[:2]] == [FORCED, FORCED]
        for answer in answers[2:]:
            assert jsonschema_rs.is_valid(NUMBERS, json.loads(answer.text))
        assert {a.terminal.reason for a in answers if a.terminal} == {generation_pb2.FINISH_REASON_STOP}
        await client.until_idle()
        await client.close()
