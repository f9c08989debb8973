"""The whole way of a call through the gateway, over a bus in memory and without any protocol's front."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from harness.answer_syntaxes import HERMES
from harness.gateway import Backend, finished, tokens, until
from harness.memory_nats import MemoryNats
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from inferflux.common.bus import Bus
from inferflux.common.calls.audit.writer import NO_AUDIT
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract.errors import (
    Aborted,
    InferFluxError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from inferflux.common.process.tasks import Background
from inferflux.common.tracing import OFF
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.models.models import ModelRegistry
from inferflux.gateway.models.splits import Splits
from inferflux.gateway.policy.caller import Caller
from inferflux.gateway.request.pipeline import Pipeline
from inferflux.gateway.request.services import Services
from inferflux.gateway.request.streams import Streams
from inferflux.gateway.request.tools import check_calls, tool_use_of
from inferflux.gateway.stream.relay import RelayLimits
from inferflux.gateway.tokenizer.control_texts import ControlTexts
from inferflux.gateway.tokenizer.template_messages import template_messages
from inferflux.v1 import (
    generation_pb2,
    guardrails_pb2,
    inference_pb2,
    policy_pb2,
    scheduler_pb2,
    tokenizer_pb2,
)

ACME = Caller("acme", "key_1", max_priority=5, cache_scope="catalogue")
Message = inference_pb2.ChatMessage
Params = generation_pb2.GenerationParams


class Policy:
    """Lets all pass, and keeps what it is told."""

    def __init__(self) -> None:
        self.reserved: list[policy_pb2.ReserveRequest] = []
        self.renewed: list[policy_pb2.ReservedRequest] = []
        self.settled: list[policy_pb2.SettleRequest] = []
        # What a reservation is answered with.
        self.answer: policy_pb2.ReserveResponse | InferFluxError = policy_pb2.ReserveResponse(lease_ms=60_000)
        self.needs_text = False
        self.may_reserve = asyncio.Event()
        self.may_reserve.set()

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse:
        self.reserved.append(request)
        await self.may_reserve.wait()
        if self.needs_text and not request.HasField("text"):
            raise Aborted("with its text", reason="GUARDRAILS_NEED_TEXT")
        if isinstance(self.answer, InferFluxError):
            raise self.answer
        return self.answer

    async def stream_guards(
        self, request: guardrails_pb2.GetStreamGuardsRequest
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        raise NotImplementedError

    async def renew(self, requests: Sequence[policy_pb2.ReservedRequest]) -> policy_pb2.RenewResponse:
        self.renewed += requests
        return policy_pb2.RenewResponse()

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        self.settled.append(request)


class WordTokenizer:
    """A token per word, its length; can be held up."""

    def __init__(self) -> None:
        self.compiled: list[generation_pb2.StructuredConstraint] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_asked = asyncio.Event()

    async def render_chat(
        self,
        digest: str,
        messages: Sequence[Message],
        context_length: int,
        *,
        tools: Sequence[inference_pb2.Tool] = (),
        images: Sequence[tokenizer_pb2.StoredMedia] = (),  # noqa: ARG002
        projector: str = "",  # noqa: ARG002
        asked: tokenizer_pb2.RenderChat | None = None,  # noqa: ARG002
    ) -> tokenizer_pb2.RenderedChat:
        text = " ".join([tool.name for tool in tools] + [message.content for message in messages])
        ids = await self.tokenize(digest, text, context_length, field="messages")
        chat = tokenizer_pb2.RenderedChat(tokens=inference_pb2.TokenIds(ids=ids))
        if tools:
            chat.syntax.CopyFrom(HERMES)
        return chat

    async def tokenize_bare(self, digest: str, texts: Sequence[str], *, field: str) -> list[Sequence[int]]:
        return [await self.tokenize(digest, text, 0, field=field) for text in texts]

    async def tokenize_gap(self, digest: str, prefix: str, suffix: str, context_length: int) -> Sequence[int]:
        return await self.tokenize(digest, f"{prefix} {suffix}", context_length, field="suffix")

    async def compile(
        self, digest: str, constraint: generation_pb2.StructuredConstraint, *, field: str
    ) -> None:
        del digest
        if constraint.regex == "(" or constraint.gbnf == "root":
            raise InvalidArgument("unclosed", field=field, reason="BAD_CONSTRAINT")
        self.compiled.append(constraint)

    async def describe(self, digest: str) -> tokenizer_pb2.TokenizerDescribed:
        return tokenizer_pb2.TokenizerDescribed(chat_template=digest)

    async def tokenize(
        self, digest: str, text: str, context_length: int, *, field: str, is_bare: bool = False
    ) -> Sequence[int]:
        del digest, context_length, field, is_bare
        self.is_asked.set()
        await self.may_answer.wait()
        return [len(word) for word in text.split()]

    async def detokenize(self, digest: str, token_ids: Sequence[int]) -> str:
        del digest
        return " ".join("x" * n for n in token_ids)


class Stage:
    """A gateway's pipeline, and the scheduler and worker that the harness plays."""

    def __init__(self, nats: MemoryNats, bus: Bus, backend: Backend) -> None:
        self.nats, self.bus, self.backend = nats, bus, backend
        self.policy, self.tokenizer = Policy(), WordTokenizer()
        self.background = Background()
        self.streams = Streams(8)
        metrics = GatewayMetrics(CollectorRegistry())
        self.models = ModelRegistry(bus, metrics.bad)
        services = Services.over(
            bus,
            self.policy,
            self.background,
            metrics,
            NO_AUDIT,
            streams=self.streams,
            relay_limits=RelayLimits(drop_check_s=0.01),
            cancel_timeout_s=1,
        )
        self.pipeline = Pipeline(
            self.models,
            self.tokenizer,
            services,
            OFF,
            max_text_bytes=1000,
            max_resume_window_s=60,
        )

    async def chat(self, request_id: str, **fields: object) -> list[int]:
        """The token ids of an answer."""
        request = inference_pb2.ChatRequest(model="demo", messages=[Message(role="user", content="hi there")])
        request.MergeFrom(inference_pb2.ChatRequest(**fields))  # type: ignore[arg-type]
        context = CallContext(request_id, deadline_at=time.monotonic() + 60, traceparent="")
        async with self.pipeline.chat(context, ACME, request) as generation:
            return [i async for chunk in generation for i in chunk.token_ids]

    async def send(
        self, context: CallContext, caller: Caller = ACME, prompt: Sequence[int] = (7, 8)
    ) -> list[int]:
        """The token ids of the answer to a prompt."""
        request = inference_pb2.GenerateRequest(model="demo", token_ids=inference_pb2.TokenIds(ids=prompt))
        async with self.pipeline.generate(context, caller, request) as generation:
            return [i async for chunk in generation for i in chunk.token_ids]

    async def generate(self, request_id: str, request: inference_pb2.GenerateRequest) -> list[int]:
        async with self.pipeline.generate(CallContext(request_id), ACME, request) as generation:
            return [i async for chunk in generation for i in chunk.token_ids]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    nats = MemoryNats()
    backend = Backend(await nats.connect("backend"), b"a tokenizer")
    await backend.start()
    stage = Stage(nats, await nats.connect("gateway"), backend)
    await stage.models.start()
    yield stage
    await stage.streams.drain(1)
    await stage.background.finish(2)
    await backend.close()
    await stage.bus.close()
    await backend.bus.close()


async def test_an_answer_comes_from_the_workers_chunks_and_is_settled_once(stage: Stage) -> None:
    answer = asyncio.create_task(stage.chat("r1", priority=9))
    job = await stage.backend.job("r1")
    assert (job.tenant, job.model, list(job.prompt_token_ids)) == ("acme", "demo", [2, 5])
    assert job.priority == 5  # the key's ceiling
    assert 0 < job.deadline_unix_ms - job.enqueued_unix_ms <= 60_000
    assert job.cache_scope == "catalogue"  # the key's as well
    assert job.params.sampling.HasField("seed")
    await stage.backend.finish(job, n=3)
    assert await answer == [0, 1, 2]
    await stage.background.finish(2)
    assert [(s.request_id, s.usage.completion_tokens) for s in stage.policy.settled] == [("r1", 3)]
    assert len(stage.streams) == 0


async def test_token_ids_are_submitted_as_they_are(stage: Stage) -> None:
    ids = inference_pb2.GenerateRequest(model="demo", token_ids=inference_pb2.TokenIds(ids=[7, 8]))
    answer = asyncio.create_task(stage.generate("r1", ids))
    job = await stage.backend.job("r1")
    assert list(job.prompt_token_ids) == [7, 8]
    await stage.backend.finish(job, n=1)
    assert await answer == [0]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"priority": 10**6}, "priority"),
        ({"resume_window_s": 61}, "resume_window_s"),
        ({"params": Params(max_tokens=0)}, "params.max_tokens"),
        ({"messages": [Message(role="unknown")]}, "messages[1].role"),
        ({"messages": [Message(role="user", content="x" * 1001)]}, "messages"),
        ({"messages": [Message(role="user", content="x " * 500)]}, "messages"),
    ],
)
async def test_bad_input_names_its_field_and_queues_nothing(
    stage: Stage, fields: dict[str, object], field: str
) -> None:
    stage.backend.card.context_length = 100
    request = inference_pb2.ChatRequest(model="demo", messages=[Message(role="user", content="hi")])
    request.MergeFrom(inference_pb2.ChatRequest(**fields))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as caught:
        async with stage.pipeline.chat(CallContext("r1"), ACME, request):
            raise AssertionError("was submitted")
    assert caught.value.field == field
    assert (stage.backend.jobs, len(stage.streams)) == ({}, 0)


async def test_a_model_that_no_worker_serves_is_not_found(stage: Stage) -> None:
    with pytest.raises(NotFound) as caught:
        await stage.generate("r1", inference_pb2.GenerateRequest(model="none", text="hi"))
    assert caught.value.reason == "UNKNOWN_MODEL"


async def test_a_request_is_reserved_once_its_tokens_are_known_and_settled_when_it_has_ended(
    stage: Stage,
) -> None:
    answer = asyncio.create_task(stage.chat("r1", params=Params(max_tokens=7)))
    job = await stage.backend.job("r1")
    (reserved,) = stage.policy.reserved
    assert (reserved.tenant, reserved.key_id, reserved.model) == ("acme", "key_1", "demo")
    assert (reserved.prompt_tokens, reserved.max_tokens, reserved.text) == (2, 7, "")
    assert (reserved.request_id, reserved.attempt_id) == ("r1", job.attempt_id)
    await stage.backend.finish(job, n=3)
    await answer
    await stage.background.finish(2)
    assert [(s.attempt_id, s.is_void) for s in stage.policy.settled] == [(job.attempt_id, False)]


async def test_what_policy_refuses_is_not_queued_and_leaves_nothing_to_settle(stage: Stage) -> None:
    stage.policy.answer = ResourceExhausted("too many", reason="RATE_LIMITED")
    with pytest.raises(ResourceExhausted, match="too many"):
        await stage.chat("r1")
    await stage.background.finish(2)
    assert (stage.backend.jobs, stage.policy.settled, len(stage.streams)) == ({}, [], 0)


async def test_without_an_answer_of_policy_nothing_is_queued_and_what_it_may_have_reserved_is_given_back(
    stage: Stage,
) -> None:
    stage.policy.answer = Unavailable("away", reason="POLICY_UNAVAILABLE")
    with pytest.raises(Unavailable, match="away"):
        await stage.chat("r1")
    await stage.background.finish(2)
    (settled,) = stage.policy.settled
    assert (settled.is_void, settled.attempt_id) == (True, stage.policy.reserved[0].attempt_id)
    assert stage.backend.jobs == {}


async def test_a_client_that_leaves_while_policy_is_asked_leaves_nothing_reserved(stage: Stage) -> None:
    stage.policy.may_reserve.clear()
    call = asyncio.create_task(stage.chat("r1"))
    await until(lambda: bool(stage.policy.reserved))
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await stage.background.finish(2)
    assert [s.is_void for s in stage.policy.settled] == [True]
    assert stage.backend.jobs == {}


async def test_a_request_that_is_not_queued_gives_back_what_was_reserved(stage: Stage) -> None:
    answer = asyncio.create_task(stage.chat("r1"))
    job = await stage.backend.job("r1")
    with pytest.raises(InferFluxError, match="used already"):
        await stage.chat("r1")
    await stage.background.finish(2)
    (settled,) = stage.policy.settled
    assert (settled.is_void, settled.attempt_id) == (True, stage.policy.reserved[1].attempt_id)
    await stage.backend.finish(job, n=1)
    await answer


async def test_without_limits_nothing_is_given_back(stage: Stage) -> None:
    stage.policy.answer = policy_pb2.ReserveResponse()
    stage.nats.stop()
    with pytest.raises(InferFluxError):
        await stage.chat("r1")
    await stage.background.finish(2)
    assert stage.policy.settled == []


async def test_policy_is_not_asked_to_reserve_where_it_has_nothing_to_decide(stage: Stage) -> None:
    request = inference_pb2.GenerateRequest(model="demo", text="to be")
    async with stage.pipeline.generate(CallContext("r1"), replace(ACME, skips_reserve=True), request):
        await stage.backend.job("r1")
    assert stage.policy.reserved == []


async def test_policy_gets_the_text_of_a_prompt_where_it_wants_it(stage: Stage) -> None:
    watched = replace(ACME, wants_text=True)
    ids = inference_pb2.GenerateRequest(model="demo", token_ids=inference_pb2.TokenIds(ids=[2, 3]))
    async with stage.pipeline.generate(CallContext("r1"), watched, ids):
        pass
    assert stage.policy.reserved[0].text == "xx xxx"


async def test_policy_gets_the_text_also_where_guardrails_came_after_the_call_was_admitted(
    stage: Stage,
) -> None:
    stage.policy.needs_text = True
    request = inference_pb2.GenerateRequest(model="demo", text="to be")
    async with stage.pipeline.generate(CallContext("r1"), ACME, request):
        pass
    asked, again = stage.policy.reserved
    assert (asked.HasField("text"), again.text) == (False, "xx xx")
    assert again.attempt_id == asked.attempt_id


async def test_a_prompt_that_guardrails_refuse_is_not_queued_and_not_settled(stage: Stage) -> None:
    stage.policy.answer = PermissionDenied("no", reason="CONTENT_FILTER")
    request = inference_pb2.GenerateRequest(model="demo", text="hi")
    with pytest.raises(PermissionDenied):
        async with stage.pipeline.generate(CallContext("r1"), ACME, request):
            raise AssertionError("was submitted")
    await stage.background.finish(2)
    assert stage.backend.jobs == {}
    assert stage.policy.settled == []


async def test_a_model_that_the_key_may_not_use_is_refused_before_any_work(stage: Stage) -> None:
    held = replace(ACME, models=("other*",))
    request = inference_pb2.GenerateRequest(model="demo", text="hi")
    with pytest.raises(PermissionDenied) as caught:
        async with stage.pipeline.generate(CallContext("r1"), held, request):
            raise AssertionError("was submitted")
    assert caught.value.reason == "MODEL_NOT_ALLOWED"
    assert not stage.tokenizer.is_asked.is_set()
    for call in (
        stage.pipeline.tokens.tokenize(held, inference_pb2.TokenizeRequest(model="demo", text="hi")),
        stage.pipeline.tokens.detokenize(held, inference_pb2.DetokenizeRequest(model="demo", token_ids=[1])),
    ):
        with pytest.raises(PermissionDenied):
            await call


@pytest.mark.parametrize("phase", ["tokenizing", "queued", "streaming"])
async def test_a_client_that_disconnects_leaves_nothing_behind_in_any_phase(stage: Stage, phase: str) -> None:
    if phase == "tokenizing":
        stage.tokenizer.may_answer.clear()
    stage.backend.reader_replies["r1"] = scheduler_pb2.ReaderReply(was_found=True, may_cancel=True)
    call = asyncio.create_task(stage.chat("r1"))
    await asyncio.wait_for(stage.tokenizer.is_asked.wait(), 5)
    if phase != "tokenizing":
        job = await stage.backend.job("r1")
        if phase == "streaming":
            await stage.backend.say(job, tokens(0))
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    assert len(stage.streams) == 0
    if phase == "tokenizing":
        assert stage.backend.jobs == {}
        return
    await until(lambda: stage.backend.cancelled == ["r1"])
    end = finished(1, reason=generation_pb2.FINISH_REASON_CANCELLED, attempt=job.attempt_id)
    await stage.backend.say(job, tokens(0), end)
    await until(lambda: [s.outcome for s in stage.policy.settled] == ["cancelled"])


async def test_a_stream_is_resumed_by_another_call(stage: Stage) -> None:
    window = inference_pb2.GenerateRequest(model="demo", text="a b", resume_window_s=60)
    first = asyncio.create_task(stage.generate("r1", window))
    job = await stage.backend.job("r1")
    await stage.backend.say(job, tokens(0), tokens(1))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await stage.backend.finish(job, n=4, offset=2)
    resume = inference_pb2.ResumeRequest(request_id="r1", offset=1)
    async with stage.pipeline.resume(CallContext("r2"), ACME, resume) as generation:
        ids = [i async for chunk in generation for i in chunk.token_ids]
    assert ids == [1, 2, 3]
    assert stage.backend.cancelled == []


async def test_cancelling_is_confirmed_or_not_found(stage: Stage) -> None:
    stage.backend.known.add("r1")
    await stage.pipeline.cancel(ACME, "r1")
    with pytest.raises(NotFound):
        await stage.pipeline.cancel(ACME, "r2")
    with pytest.raises(InvalidArgument) as caught:
        await stage.pipeline.cancel(ACME, "a.b")
    assert caught.value.field == "request_id"


async def test_a_request_id_is_taken_once(stage: Stage) -> None:
    answer = asyncio.create_task(stage.chat("r1"))
    job = await stage.backend.job("r1")
    with pytest.raises(InferFluxError) as caught:
        await stage.chat("r1")
    assert caught.value.reason == "REQUEST_ID_TAKEN"
    await stage.backend.finish(job, n=1)
    assert await answer == [0]


SENT = CallContext("r1", is_id_chosen=True, idempotency_key="the same")
OTHER_CALLS = [
    (SENT, Caller("acme", "another key"), (7, 8)),
    (CallContext("r1", is_id_chosen=True, idempotency_key="another"), ACME, (7, 8)),
    (CallContext("r1", is_id_chosen=True), ACME, (7, 8)),
    (SENT, ACME, (7, 9)),
]


async def test_a_call_that_is_sent_again_reads_the_job_that_runs(stage: Stage) -> None:
    first = asyncio.create_task(stage.send(SENT))
    job = await stage.backend.job("r1")
    await stage.backend.say(job, tokens(0), tokens(1))
    again = asyncio.create_task(stage.send(SENT))
    await until(lambda: len(stage.streams) == 2)
    await until(
        lambda: [n.joined.request.attempt_id for n in stage.backend.reader_notices] == [job.attempt_id]
    )
    for context, caller, prompt in OTHER_CALLS:
        with pytest.raises(InferFluxError) as caught:
            await stage.send(context, caller, prompt)
        assert caught.value.reason == "REQUEST_ID_TAKEN"
    await stage.backend.finish(job, n=4, offset=2)
    assert await first == await again == [0, 1, 2, 3]
    await stage.background.finish(2)
    assert {s.attempt_id for s in stage.policy.settled if s.usage.completion_tokens} == {job.attempt_id}


async def test_a_call_that_is_sent_again_when_it_has_ended_gets_its_answer(stage: Stage) -> None:
    first = asyncio.create_task(stage.send(SENT))
    job = await stage.backend.job("r1")
    await stage.backend.finish(job, n=3)
    assert await first == [0, 1, 2]
    assert await stage.send(SENT) == [0, 1, 2]
    for context, caller, prompt in OTHER_CALLS:
        with pytest.raises(InferFluxError) as caught:
            await stage.send(context, caller, prompt)
        assert caught.value.reason == "REQUEST_ID_TAKEN"
    await stage.background.finish(2)
    assert {s.attempt_id for s in stage.policy.settled if s.usage.completion_tokens} == {job.attempt_id}


async def test_tokens_missed_while_nats_was_away_are_made_up_for(stage: Stage) -> None:
    answer = asyncio.create_task(stage.chat("r1"))
    job = await stage.backend.job("r1")
    await stage.backend.say(job, tokens(0))
    stage.nats.cut(stage.bus)
    await stage.backend.say(job, tokens(1))
    stage.nats.mend(stage.bus)
    await stage.backend.say(job, tokens(2), finished(3))
    assert await asyncio.wait_for(answer, 5) == [0, 1, 2]


async def test_without_nats_a_request_is_unavailable(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferflux.common.bus.queueing._TOTAL_TIMEOUT_S", 0.1)
    await stage.models.card("demo")
    stage.nats.stop()
    with pytest.raises(Unavailable) as caught:
        await stage.chat("r1")
    assert caught.value.reason == "QUEUE_UNAVAILABLE"
    assert len(stage.streams) == 0


async def resumed(stage: Stage, request_id: str) -> list[int]:
    request = inference_pb2.ResumeRequest(request_id=request_id)
    async with stage.pipeline.resume(CallContext("r2"), ACME, request) as generation:
        return [i async for chunk in generation for i in chunk.token_ids]


async def test_a_queued_request_without_a_chunk_is_resumed_by_what_the_scheduler_knows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferflux.gateway.request.resumption._RESUME_WAIT_S", 0.05)
    stage.backend.reader_replies["r1"] = scheduler_pb2.ReaderReply(was_found=True, attempt_id="a1")
    answer = asyncio.create_task(resumed(stage, "r1"))
    await until(lambda: any(n.joined.request.request_id == "r1" for n in stage.backend.reader_notices))
    await asyncio.sleep(0.1)
    assert not answer.done()
    job = scheduler_pb2.InferenceRequest(tenant="acme", request_id="r1")
    await stage.backend.say(job, tokens(0), finished(1, attempt="a1"))
    assert await answer == [0]


async def test_a_request_of_which_no_scheduler_can_tell_is_unavailable_and_an_unknown_one_not_found(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferflux.gateway.request.resumption._RESUME_WAIT_S", 0.05)
    with pytest.raises(NotFound) as unknown:
        await resumed(stage, "r1")
    assert unknown.value.reason == "UNKNOWN_REQUEST"
    assert stage.backend.readers is not None
    await stage.backend.readers.close()  # as while a standby takes over
    with pytest.raises(Unavailable) as unanswered:
        await resumed(stage, "r1")
    assert unanswered.value.reason == "NO_SCHEDULER"
    assert unanswered.value.retry_delay_s
    assert len(stage.streams) == 0


def constrained(**fields: object) -> Params:
    return Params(constraint=generation_pb2.StructuredConstraint(**fields))  # type: ignore[arg-type]


async def can_constrain(stage: Stage) -> None:
    """Have the model's worker say that it constrains answers."""
    stage.backend.card.can_constrain = True
    await stage.backend.beat()

    async def is_known() -> bool:
        return (await stage.models.card("demo")).can_constrain

    await until(is_known)


async def test_a_constraint_is_refused_where_no_worker_can(stage: Stage) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await stage.chat("r1", params=constrained(json_object=True))
    assert (refused.value.field, refused.value.reason) == (
        "params.constraint.json_object",
        "CONSTRAINT_UNSUPPORTED",
    )
    assert not stage.tokenizer.compiled


async def test_a_schema_reaches_the_workers_normalised_and_is_tried_once(stage: Stage) -> None:
    await can_constrain(stage)
    params = constrained(json_schema='{"title": "T",\n "type": "integer"}')
    for name in ("r1", "r2"):
        answer = asyncio.create_task(stage.chat(name, params=params))
        job = await stage.backend.job(name)
        assert job.params.constraint.json_schema == '{"type":"integer"}'
        await stage.backend.finish(job, n=1)
        assert await answer == [0]
    assert len(stage.tokenizer.compiled) == 1


@pytest.mark.parametrize(
    ("params", "field", "words"),
    [
        (constrained(json_schema='{"not": {}}'), "params.constraint.json_schema", "the schema cannot be"),
        (constrained(regex="("), "params.constraint.regex", "the regular expression cannot be used"),
        (constrained(gbnf="root"), "params.constraint.gbnf", "the grammar cannot be used"),
    ],
)
async def test_a_constraint_that_cannot_be_used_is_refused_before_anything_is_queued(
    stage: Stage, params: Params, field: str, words: str
) -> None:
    await can_constrain(stage)
    with pytest.raises(InvalidArgument, match=words) as refused:
        await stage.chat("r1", params=params)
    assert refused.value.field == field
    assert not stage.backend.jobs


ADD = inference_pb2.Tool(
    name="add", description="Adds.", parameters='{"properties": {"a": {"type": "integer"}}}'
)


REQUIRED = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_CHOICE_MODE_REQUIRED)
NO_CALLS = inference_pb2.ToolChoice(mode=inference_pb2.TOOL_CHOICE_MODE_NONE)
UNKNOWN_MODE = inference_pb2.ToolChoice.FromString(b"\x08\x09")


def asking(*tools: inference_pb2.Tool, **fields: object) -> inference_pb2.ChatRequest:
    messages = [Message(role="user", content="hello")]
    return inference_pb2.ChatRequest(model="demo", messages=messages, tools=tools, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (asking(inference_pb2.Tool(name="a\nb")), "tools[0].name"),
        (asking(inference_pb2.Tool(name="")), "tools[0].name"),
        (asking(inference_pb2.Tool(name="x" * 129)), "tools[0].name"),
        (asking(ADD, ADD), "tools[1].name"),
        (asking(*(inference_pb2.Tool(name=f"f{i}") for i in range(513))), "tools"),
        (asking(inference_pb2.Tool(name="f", description="x" * (512 * 1024 + 1))), "tools"),
        (asking(inference_pb2.Tool(name="f", parameters="{")), "tools[0].parameters"),
        (asking(inference_pb2.Tool(name="f", parameters="3")), "tools[0].parameters"),
        (
            asking(inference_pb2.Tool(name="f", parameters='{"contains": true}', strict=True)),
            "tools[0].parameters",
        ),
        (asking(inference_pb2.Tool(name="f", parameters='{"title": "\\ud800"}')), "tools[0].parameters"),
        (asking(ADD, tool_choice=inference_pb2.ToolChoice(name="sub")), "tool_choice"),
        (
            asking(tool_choice=REQUIRED),
            "tool_choice",
        ),
        (asking(ADD, tool_choice=UNKNOWN_MODE), "tool_choice"),
    ],
)
def test_tools_that_cannot_be_used_are_refused_by_name(
    request_: inference_pb2.ChatRequest, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        tool_use_of(request_)
    assert refused.value.field == field


def test_a_tool_choice_says_what_may_be_called() -> None:
    sub = inference_pb2.Tool(name="sub")
    none = tool_use_of(asking(ADD, tool_choice=NO_CALLS))
    assert not none.tools
    assert not none.functions
    named = tool_use_of(asking(ADD, sub, tool_choice=inference_pb2.ToolChoice(name="sub")))
    assert (len(named.tools), named.names, named.is_required) == (2, frozenset({"sub"}), True)
    auto = tool_use_of(asking(ADD, sub, parallel_tool_calls=False))
    assert (auto.names, auto.is_required, auto.is_single) == (frozenset({"add", "sub"}), False, True)
    assert auto.functions[0].parameters == '{"properties":{"a":{"type":"integer"}},"type":"object"}'
    assert auto.functions[1].parameters == '{"type":"object","properties":{},"additionalProperties":false}'


def test_with_tools_and_a_format_an_answer_is_calls_or_of_that_format() -> None:
    content = generation_pb2.StructuredConstraint(json_object=True)
    chat = tokenizer_pb2.RenderedChat()
    assert tool_use_of(asking(ADD)).constraint(chat, content).content.json_object
    assert not tool_use_of(asking(ADD)).constraint(chat).HasField("content")
    assert not tool_use_of(asking(ADD, tool_choice=REQUIRED)).constraint(chat, content).HasField("content")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message(role="user", tool_calls=[inference_pb2.ToolCall(name="f")]), "m.tool_calls"),
        (Message(role="assistant", tool_calls=[inference_pb2.ToolCall(name="a\nb")]), "m.tool_calls[0].name"),
    ],
)
def test_a_call_of_the_conversation_that_is_none_is_refused(message: Message, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_calls(message, "m")
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ("", {}),
        ('{"a": 1}', {"a": 1}),
        ('{"city": "Par', {"city": "Par"}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("{", {}),
        ("[1]", {"arguments": "[1]"}),
        ("Paris", {"arguments": "Paris"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ('{"a": "\\ud800"}', {"arguments": '{"a": "\\ud800"}'}),
        ("[" * 500, {"arguments": "[" * 500}),
        ("9" * 5000, {"arguments": "9" * 5000}),
    ],
)
def test_a_call_that_a_limit_cut_is_taken_back(arguments: str, taken: dict[str, Any]) -> None:
    call = inference_pb2.ToolCall(id="c", name="f", arguments=arguments)
    message = Message(role="assistant", tool_calls=[call])
    check_calls(message, "m")
    (made,) = template_messages([message], ControlTexts([], mark="mark"))
    assert made.calls[0].arguments == taken


async def test_a_client_cannot_set_the_constraint_of_calls_itself(stage: Stage) -> None:
    await can_constrain(stage)
    calls = generation_pb2.ToolCallsConstraint(syntax=HERMES)
    calls.functions.add(name="f")
    with pytest.raises(InvalidArgument) as refused:
        await stage.chat("r1", params=constrained(tool_calls=calls))
    assert refused.value.field == "params.constraint.tool_calls"


_WAYS: tuple[dict[str, object], ...] = ({"model": "demo:odd"}, {"adapter": "odd"}, {})


async def test_an_adapter_is_chosen_by_the_models_name_or_by_a_field(stage: Stage) -> None:
    stage.backend.card.adapters.add(name="odd", digest="a" * 64, scale=1.0)
    await stage.backend.beat()
    for number, fields in enumerate(_WAYS):
        answer = asyncio.create_task(stage.chat(f"r{number}", **fields))
        job = await stage.backend.job(f"r{number}")
        chosen = ("odd", "a" * 64) if fields else ("", "")
        assert (job.model, job.adapter, job.adapter_digest) == ("demo", *chosen)
        await stage.backend.finish(job, n=1)
        await answer
    with pytest.raises(NotFound) as unknown:
        await stage.chat("r8", model="demo:even")
    assert unknown.value.reason == "UNKNOWN_ADAPTER"
    with pytest.raises(InvalidArgument) as two:
        await stage.chat("r9", model="demo:odd", adapter="even")
    assert two.value.field == "adapter"


@pytest.mark.parametrize("fields", [*_WAYS, {"model": "chat"}, {"model": "chat", "adapter": "odd"}])
async def test_no_name_leads_a_key_to_a_model_or_adapter_that_it_may_not_use(
    stage: Stage, fields: dict[str, Any]
) -> None:
    stage.backend.card.adapters.add(name="odd", digest="a" * 64, scale=1.0)
    await stage.backend.beat()
    stage.models.splits = Splits({"chat": {"demo": 1.0, "demo:odd": 1.0}})
    for models in (("other",), ("chat",), ("odd",), ("demo:even",), ("demo?", "dem")):
        named: dict[str, Any] = {"model": "demo", **fields}
        request = inference_pb2.GenerateRequest(text="hi", **named)
        with pytest.raises(PermissionDenied) as caught:
            async with stage.pipeline.generate(CallContext("r1"), replace(ACME, models=models), request):
                raise AssertionError("was submitted")
        assert caught.value.reason == "MODEL_NOT_ALLOWED"
    assert stage.backend.jobs == {}


async def test_an_alias_that_is_split_goes_to_what_can_serve(stage: Stage) -> None:
    stage.models.splits = Splits({"chat": {"demo": 1.0, "away": 1000.0}})
    answer = asyncio.create_task(stage.chat("r1", model="chat"))
    with capture_logs() as logged:
        job = await stage.backend.job("r1")
    assert job.model == "demo"
    await stage.backend.finish(job, n=1)
    await answer
    routed = [line for line in logged if line["event"] == "a request is routed"]
    said = [(line["asked"], line["model"], line["by"], line["log_level"]) for line in routed]
    assert said == [("chat", "demo", "split", "info")]
