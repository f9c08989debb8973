"""Sets that hold for a request, and prompts that break them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from inferflux.common.calls.grpc_metadata import GUARDRAIL
from inferflux.common.contract.errors import Aborted, PermissionDenied, Unavailable
from inferflux.policy.decide.guardrails.prompts import PromptGuard
from inferflux.policy.decide.guardrails.sets import GuardrailSets
from inferflux.policy.decide.guardrails.store import Index, Name, Rules, Summary, Versions
from inferflux.v1 import guardrails_pb2, policy_pb2

Blocked = guardrails_pb2.BlockedText


class Store:
    """Sets in memory, and those that were asked for."""

    def __init__(self) -> None:
        self.sets: dict[Name, tuple[Summary, Rules]] = {}
        self.version = 0
        self.loaded: list[str] = []
        self.is_away = False

    def write(self, tenant: str = "", model: str = "", **rules: Any) -> None:
        self.version += 1
        made = Rules(**rules)
        summary = Summary(
            tenant=tenant,
            model=model,
            version=self.version,
            n_blocked=len(made.blocked),
            n_patterns=len(made.patterns),
            max_characters=made.max_characters,
            max_tokens=made.max_tokens,
            guards_stream=made.guards_stream,
        )
        self.sets[Name(tenant, model)] = (summary, made)

    async def index(self) -> Index:
        if self.is_away:
            raise Unavailable("away")
        return Index.of({name: summary for name, (summary, _) in self.sets.items()})

    async def rules(self, names: Sequence[Name]) -> list[Rules | None]:
        self.loaded += [name.text for name in names]
        return [self.sets[name][1] if name in self.sets else None for name in names]

    async def put(self, name: Name, summary: Summary, rules: Rules) -> Versions:
        raise NotImplementedError

    async def delete(self, name: Name, *, version: int) -> int:
        raise NotImplementedError


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def prompts(store: Store) -> PromptGuard:
    return PromptGuard(GuardrailSets(store), store)


def asked(
    text: str | None = "hello", *, tenant: str = "acme", model: str = "demo", tokens: int = 1
) -> policy_pb2.ReserveRequest:
    return policy_pb2.ReserveRequest(tenant=tenant, model=model, text=text, prompt_tokens=tokens)


async def broken(prompts: PromptGuard, request: policy_pb2.ReserveRequest) -> str:
    """The rule that a prompt breaks; "" if it passes."""
    try:
        await prompts.check(request)
    except PermissionDenied as error:
        return error.headers.get(GUARDRAIL, "")
    return ""


@pytest.mark.parametrize(
    ("patterns", "text", "is_beside"),
    [
        ([r"\b\d{3}-\d{2}-\d{4}\b"], "a" * 2_000, False),
        ([r"\b\d{3}-\d{2}-\d{4}\b"], "a" * 8_001, True),
        ([".{0,999}z"], "a" * 2_000, True),
    ],
)
async def test_what_takes_long_is_looked_at_beside_the_event_loop(
    store: Store, prompts: PromptGuard, patterns: list[str], text: str, is_beside: bool
) -> None:
    store.write("acme", patterns=patterns)
    assert not await broken(prompts, asked("compiled now"))
    check = asyncio.create_task(broken(prompts, asked(text)))
    await asyncio.sleep(0)  # it runs as far as it goes without waiting for anything
    assert check.done() is not is_beside
    assert not await check


async def test_sets_hold_for_their_tenants_and_models_alone(store: Store, prompts: PromptGuard) -> None:
    for tenant in ("", "acme"):
        for model in ("", "demo"):
            store.write(tenant, model, blocked=[Blocked(text=f"no-{tenant or 'all'}-{model or 'all'}")])
    for tenant, model, held in (
        ("acme", "demo", {"/", "/demo", "acme/", "acme/demo"}),
        ("acme", "big", {"/", "acme/"}),
        ("other", "demo", {"/", "/demo"}),
        ("other", "big", {"/"}),
    ):
        texts = [f"no-{t}-{m}" for t in ("all", "acme") for m in ("all", "demo")]
        found = {await broken(prompts, asked(text, tenant=tenant, model=model)) for text in texts}
        assert found - {""} == {f"{name} blocked[0]" for name in held}


@pytest.mark.parametrize(
    ("rules", "request_", "reason"),
    [
        ({"blocked": [Blocked(text="hell")]}, asked(), "CONTENT_FILTER"),
        ({"patterns": ["l+o"]}, asked(), "CONTENT_FILTER"),
        ({"patterns": ["^x+y$"]}, asked("x" * 20_000 + "y"), "CONTENT_FILTER"),
        ({"max_characters": 4}, asked(), "PROMPT_TOO_LARGE"),
        ({"max_tokens": 1}, asked(tokens=2), "PROMPT_TOO_LARGE"),
    ],
)
async def test_a_refusal_says_why_and_not_the_text(
    store: Store,
    prompts: PromptGuard,
    rules: dict[str, Any],
    request_: policy_pb2.ReserveRequest,
    reason: str,
) -> None:
    store.write("acme", **rules)
    with pytest.raises(PermissionDenied) as caught:
        await prompts.check(request_)
    assert caught.value.reason == reason
    assert caught.value.headers[GUARDRAIL].startswith("acme/ ")
    said = caught.value.message + caught.value.headers[GUARDRAIL]
    assert "hell" not in said
    assert "l+o" not in said


async def test_the_text_is_asked_for_where_a_rule_needs_it(store: Store, prompts: PromptGuard) -> None:
    store.write(max_tokens=5)
    assert await prompts.check(asked(None)) == []
    store.write("acme", blocked=[Blocked(text="x")])
    with pytest.raises(Aborted) as caught:
        await prompts.check(asked(None))
    assert caught.value.reason == "GUARDRAILS_NEED_TEXT"
    assert await prompts.check(asked("")) == []


async def test_sets_are_compiled_once_for_each_version(store: Store, prompts: PromptGuard) -> None:
    store.write("acme", blocked=[Blocked(text="one")])
    for _ in range(5):
        assert await broken(prompts, asked("one"))
    assert store.loaded == ["acme/"]
    store.write("acme", blocked=[Blocked(text="two")])
    assert not await broken(prompts, asked("one"))
    assert await broken(prompts, asked("two"))
    assert store.loaded == ["acme/", "acme/"]


async def test_a_store_that_is_away_lets_nothing_through(store: Store, prompts: PromptGuard) -> None:
    assert await prompts.check(asked()) == []
    store.is_away = True
    with pytest.raises(Unavailable):
        await prompts.check(asked())


async def test_a_set_that_cannot_be_used_here_lets_nothing_through(
    store: Store, prompts: PromptGuard
) -> None:
    store.write("acme", patterns=["("])
    with pytest.raises(Unavailable) as caught:
        await prompts.check(asked())
    assert caught.value.reason == "GUARDRAILS_UNUSABLE"
    assert await prompts.check(asked(tenant="other")) == []


async def test_answers_are_held_to_the_sets_that_say_so(store: Store, prompts: PromptGuard) -> None:
    store.write(blocked=[Blocked(text="x")])
    store.write("acme", blocked=[Blocked(text="x")], guards_stream=True)
    store.write("acme", "demo", patterns=["x"], guards_stream=True)
    guards = await prompts.check(asked())
    assert [(each.tenant, each.model, each.version) for each in guards] == [
        ("acme", "", 2),
        ("acme", "demo", 3),
    ]
    assert await prompts.check(asked(tenant="other")) == []


async def test_rules_of_answers_are_sent_once_and_only_those_of_the_tenant(
    store: Store, prompts: PromptGuard
) -> None:
    for tenant, model in (("", ""), ("acme", "demo"), ("acme", "big"), ("other", "")):
        store.write(tenant, model, blocked=[Blocked(text="x")], guards_stream=True)
    request = guardrails_pb2.GetStreamGuardsRequest(tenant="acme", model="demo")
    answer = await prompts.for_streams(request)
    assert [(each.tenant, each.model, each.HasField("rules")) for each in answer.guardrails] == [
        ("", "", True),
        ("acme", "demo", True),
    ]
    request.known.add(tenant="acme", model="demo", version=2)
    answer = await prompts.for_streams(request)
    assert [each.HasField("rules") for each in answer.guardrails] == [True, False]
    request.model = ""
    answer = await prompts.for_streams(request)
    assert {(each.tenant, each.model) for each in answer.guardrails} == {
        ("", ""),
        ("acme", "demo"),
        ("acme", "big"),
    }


async def test_a_message_has_no_more_rules_than_fit(store: Store, prompts: PromptGuard) -> None:
    texts = [Blocked(text=f"{i:0>250}") for i in range(4000)]
    for model in ("a", "b", "c", "d"):
        store.write("acme", model, blocked=texts, guards_stream=True)
    request = guardrails_pb2.GetStreamGuardsRequest(tenant="acme")
    seen = []
    for _ in range(2):
        answer = await prompts.for_streams(request)
        assert answer.ByteSize() < 4 << 20
        for each in answer.guardrails:
            if each.HasField("rules"):
                seen.append(each.model)
                request.known.add(tenant=each.tenant, model=each.model, version=each.version)
    assert seen == ["a", "b", "c", "d"]
