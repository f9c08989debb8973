"""One request from its submission to its account, before a bus and a policy service that a test plays."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from inferflux.common.bus import Bus
from inferflux.common.calls.audit.writer import NO_AUDIT
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import AlreadyExists, InferFluxError, ResourceExhausted, Unavailable
from inferflux.common.process.tasks import Background
from inferflux.common.tracing import OFF
from inferflux.gateway.answers.cache import AnswerCache, Query
from inferflux.gateway.answers.record import Recorder
from inferflux.gateway.metrics import GatewayMetrics
from inferflux.gateway.policy.caller import Caller
from inferflux.gateway.request.call import Call
from inferflux.gateway.request.generation import Generation
from inferflux.gateway.request.preparation import Prepared
from inferflux.gateway.request.services import Services
from inferflux.gateway.request.streams import Streams
from inferflux.gateway.stream.relay import RelayLimits
from inferflux.v1 import (
    answers_pb2,
    generation_pb2,
    guardrails_pb2,
    model_pb2,
    policy_pb2,
    scheduler_pb2,
    tokens_pb2,
)

CARD = model_pb2.ModelCard(name="demo")
STOP = generation_pb2.FINISH_REASON_STOP
ANSWER = answers_pb2.CachedAnswer(
    chunks=[tokens_pb2.TokenChunk(offset=i, token_ids=[7], text="x") for i in range(3)], reason=STOP
)


class ScriptedBus:
    """A bus, and the subscription to one token stream."""

    is_connected = True
    max_payload = 1 << 20
    dropped = False

    def __init__(self) -> None:
        # False: the id is another call's.
        self.enqueued: bool | InferFluxError = True
        self.live: list[bytes] = []
        self.stored: list[bytes] = []
        self.looks_before_stored = 0
        self.published: list[bytes] = []
        self.refused_publishes = 0
        self.reply = scheduler_pb2.ReaderReply()
        self.may_reply = asyncio.Event()
        self.may_reply.set()

    def check_queue(self) -> None:
        pass

    async def enqueue(self, *_args: object, attempt: str, **_named: object) -> str:
        await asyncio.sleep(0)
        if isinstance(self.enqueued, InferFluxError):
            raise self.enqueued
        return attempt if self.enqueued else ""

    async def open_stream(self, _subject: str) -> ScriptedBus:
        return self

    async def replay(self, _subject: str) -> list[bytes]:
        if self.looks_before_stored:
            self.looks_before_stored -= 1
            return []
        return self.stored

    async def request(self, subject: str, *_args: object, **_named: object) -> bytes:
        if subject == subjects.SCHEDULER_READERS:
            await self.may_reply.wait()
            return self.reply.SerializeToString()
        return scheduler_pb2.CancelReply().SerializeToString()

    async def request_many(
        self, subject: str, *_args: object, is_last: Callable[[bytes], bool], **_named: object
    ) -> list[bytes]:
        reply = await self.request(subject)
        is_last(reply)
        return [reply]

    async def publish(self, _subject: str, data: bytes) -> None:
        if self.refused_publishes:
            self.refused_publishes -= 1
            raise Unavailable("not now", reason="NOT_CONNECTED")
        self.published.append(data)

    async def next(self, timeout_s: float) -> bytes:
        if self.live:
            return self.live.pop(0)
        await asyncio.sleep(min(timeout_s, 0.01))
        raise TimeoutError

    def next_nowait(self) -> bytes | None:
        return self.live.pop(0) if self.live else None

    def close(self) -> None:
        pass


class OneAnswer:
    """An answer cache that knows one answer."""

    async def find(self, _query: Query) -> answers_pb2.CachedAnswer:
        return ANSWER


class Stage:
    """A gateway's services around the scripted bus."""

    def __init__(self, *, gap_limit_s: float = 30.0) -> None:
        self.bus = ScriptedBus()
        self.settled: list[policy_pb2.SettleRequest] = []
        # What answers are held to, and the models that it was asked for.
        self.rules: guardrails_pb2.GuardrailRules | None = None
        self.models_asked: list[str] = []
        bus = cast("Bus", self.bus)
        background = Background()
        self.streams = Streams(10)
        self.background = background
        self._services = Services.over(
            bus,
            self,
            background,
            GatewayMetrics(CollectorRegistry()),
            NO_AUDIT,
            streams=self.streams,
            relay_limits=RelayLimits(drop_check_s=0.01, gap_retry_s=0.01, gap_limit_s=gap_limit_s),
            cancel_timeout_s=1,
            answers=cast("AnswerCache", OneAnswer()),
        )
        self.reports = self._services.readers.reports

    async def reserve(self, request: policy_pb2.ReserveRequest) -> policy_pb2.ReserveResponse:
        del request
        return policy_pb2.ReserveResponse(
            stream_guards=[guardrails_pb2.GuardrailsVersion(version=1)] if self.rules else []
        )

    async def stream_guards(
        self, request: guardrails_pb2.GetStreamGuardsRequest
    ) -> guardrails_pb2.GetStreamGuardsResponse:
        self.models_asked.append(request.model)
        sets = [guardrails_pb2.Guardrails(version=1, rules=self.rules)] if self.rules else []
        return guardrails_pb2.GetStreamGuardsResponse(guardrails=sets)

    async def renew(self, requests: Sequence[policy_pb2.ReservedRequest]) -> policy_pb2.RenewResponse:
        raise NotImplementedError

    async def settle(self, request: policy_pb2.SettleRequest) -> None:
        self.settled.append(request)

    def generation(
        self, method: str = "Generate", *, is_id_chosen: bool = False, reserves: bool = False
    ) -> Generation:
        model = "" if method == "Resume" else "demo"
        caller = Caller("acme", "key", guards_stream=self.rules is not None, skips_reserve=not reserves)
        call = Call(
            method, model, "r1", caller, OFF.start("test"), CallContext("r1", is_id_chosen=is_id_chosen)
        )
        return Generation(call, self._services)

    async def submit(self, attempt_id: str) -> None:
        """Have a request refused or accepted; an accepted one is left at once."""
        job = scheduler_pb2.InferenceRequest(request_id="r1", prompt_token_ids=[1, 2], attempt_id=attempt_id)
        async with self.generation() as generation:
            await generation.submit(prepared(job))

    def reported(self) -> list[str]:
        """The attempts that the gateway says it reads."""
        return [read.attempt_id for batch in self.reports.local.batches(100) for read in batch]

    async def end(self) -> None:
        """End what runs beside the requests, and let it write down what it has to."""
        async with asyncio.timeout(1):
            while self.bus.live:
                await asyncio.sleep(0)
        await self.streams.drain(1)
        await self.background.finish(5)


def prepared(job: scheduler_pb2.InferenceRequest, *, is_cached: bool = False) -> Prepared:
    """A request that is answered by a job, or from the cache."""

    async def text() -> str:
        raise NotImplementedError

    query = Query("acme", "demo", b"key", 3, Recorder()) if is_cached else None
    return Prepared(CARD, job, "prompt", text, query)


async def test_a_refused_duplicate_leaves_the_accepted_request_its_reader() -> None:
    stage = Stage()
    job = scheduler_pb2.InferenceRequest(request_id="r1", attempt_id="accepted")
    async with stage.generation() as generation:
        await generation.submit(prepared(job))
        stage.bus.enqueued = False
        refused = [asyncio.create_task(stage.submit(f"refused-{i}")) for i in range(5)]
        while not all(task.done() for task in refused):
            assert stage.reported() == ["accepted"]
            await asyncio.sleep(0)
        reasons = [getattr(task.exception(), "reason", "") for task in refused]
        assert reasons == ["REQUEST_ID_TAKEN"] * 5
        assert stage.reported() == ["accepted"]
    assert stage.reported() == []
    await stage.end()
    assert {request.attempt_id for request in stage.settled} == {"accepted"}


async def test_a_stream_whose_job_the_queue_has_forgotten_is_the_same_calls_alone() -> None:
    """The queue knows an id for two minutes, and a stream may run for longer."""
    stage = Stage()
    begun = tokens_pb2.TokenChunk(request_id="r1", attempt_id="drawn-one")
    begun.started.worker_id = "w"
    stage.bus.stored = [begun.SerializeToString()]
    another = scheduler_pb2.InferenceRequest(request_id="r1", attempt_id="later-two")
    async with stage.generation(is_id_chosen=True) as generation:
        with pytest.raises(AlreadyExists, match="was used already"):
            await generation.submit(prepared(another))
    stage.bus.enqueued = Unavailable("it must not be queued", reason="QUEUE_UNAVAILABLE")
    stage.bus.live = [finished("drawn-one")]
    same = scheduler_pb2.InferenceRequest(request_id="r1", attempt_id="later-one")
    async with stage.generation(is_id_chosen=True) as generation:
        await generation.submit(prepared(same))
        assert stage.reported() == ["drawn-one"]
        events = [chunk.WhichOneof("event") async for chunk in generation]
    assert events == ["started", "finished"]
    await stage.end()
    assert {request.attempt_id for request in stage.settled} == {"drawn-one"}


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhausted("full", reason="QUEUE_FULL"),
        Unavailable("not now", reason="QUEUE_UNAVAILABLE"),
        Unavailable("not now", reason="STORE_UNAVAILABLE"),
        Unavailable("perhaps", reason="OUTCOME_UNKNOWN"),
    ],
)
async def test_a_submission_without_a_job_settles_nothing(error: InferFluxError) -> None:
    stage = Stage()
    stage.bus.enqueued = error
    with pytest.raises(type(error)):
        await stage.submit("a1")
    assert stage.reported() == []
    await stage.end()
    assert stage.settled == []


async def test_a_job_that_was_unconfirmed_is_settled_once_a_chunk_comes() -> None:
    stage = Stage()
    stage.bus.enqueued = Unavailable("perhaps", reason="OUTCOME_UNKNOWN")
    stage.bus.live = [finished("a1")]
    with pytest.raises(Unavailable):
        await stage.submit("a1")
    await stage.end()
    assert [(request.attempt_id, request.usage.prompt_tokens) for request in stage.settled] == [("a1", 2)]


async def test_the_terminal_chunk_names_the_attempt_whatever_the_scheduler_answers_later() -> None:
    """The answer to a resumed reader's notice may come after all chunks, and of the id's next attempt."""
    for late in (
        scheduler_pb2.ReaderReply(was_found=True),
        scheduler_pb2.ReaderReply(was_found=True, attempt_id="a2"),
    ):
        stage = Stage()
        stage.bus.may_reply.clear()
        stage.bus.reply, stage.bus.stored = late, [finished("a1")]
        async with stage.generation("Resume") as generation:
            await generation.resume(0)
            await anext(aiter(generation))
            stage.bus.may_reply.set()
            for _ in range(5):
                await asyncio.sleep(0)
            assert [chunk async for chunk in generation] == []
        await stage.end()
        assert [request.attempt_id for request in stage.settled] == ["a1"]


async def test_chunks_that_are_stored_after_the_first_look_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scheduler knows an answer from the cache, and its chunks may be resumed before they are stored."""
    monkeypatch.setattr("inferflux.gateway.request.resumption._RESUME_WAIT_S", 0.01)
    stage = Stage()
    stage.bus.stored, stage.bus.looks_before_stored = [finished("a1")], 1
    async with stage.generation("Resume") as generation:
        await generation.resume(0)
        chunks = [chunk async for chunk in generation]
    assert [chunk.WhichOneof("event") for chunk in chunks] == ["finished"]
    await stage.end()


async def test_the_model_of_a_resumed_stream_is_recorded_by_its_terminal_chunk_or_by_its_scheduler() -> None:
    stage = Stage()
    stage.bus.stored = [finished("a1", model="demo")]
    stage.bus.reply = scheduler_pb2.ReaderReply(was_found=True, attempt_id="a2", model="of the next attempt")
    async with stage.generation("Resume") as generation:
        await generation.resume(0)
        await anext(aiter(generation))
    await stage.end()
    assert [request.model for request in stage.settled] == ["demo"]

    stage = Stage()
    stage.bus.stored = [tokens_pb2.TokenChunk(epoch=1, token_ids=[7]).SerializeToString()]
    stage.bus.reply = scheduler_pb2.ReaderReply(was_found=True, attempt_id="a1", model="demo")
    async with stage.generation("Resume") as generation:
        await generation.resume(0)
        await anext(aiter(generation))
    await stage.end()
    assert [(request.model, request.attempt_id) for request in stage.settled] == [("demo", "a1")]


async def test_a_request_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    stage = Stage()
    stage.bus.live = [finished("a1")]
    job = scheduler_pb2.InferenceRequest(request_id="r1", prompt_token_ids=[1, 2], attempt_id="a1")
    gc.disable()
    try:
        async with stage.generation() as generation:
            await generation.submit(prepared(job))
            assert [chunk.WhichOneof("event") async for chunk in generation] == ["finished"]
        freed = weakref.ref(generation)
        del generation
        await stage.end()
        assert freed() is None
    finally:
        gc.enable()


FORM = generation_pb2.AnswerFormat(reasoning=generation_pb2.REASONING_FORMAT_OPEN)


def thought(i: int, text: str, **fields: Any) -> bytes:
    return tokens_pb2.TokenChunk(epoch=1, offset=i, token_ids=[7], text=text, **fields).SerializeToString()


async def resumed(stage: Stage, offset: int) -> list[tuple[str, ...]]:
    """Text, and reasoning and content where they are told, of each chunk with tokens."""
    said: list[tuple[str, ...]] = []
    try:
        async with stage.generation("Resume") as generation:
            await generation.resume(offset)
            async for chunk in generation:
                assert not chunk.HasField("answer_format")
                delta = generation.read(chunk)
                told = () if delta is None else (delta.reasoning_content, delta.content)
                if chunk.token_ids:
                    said.append((chunk.text, *told))
    finally:
        await stage.end()
    return said


async def test_a_chat_that_is_resumed_goes_on_being_read_where_its_client_was() -> None:
    stage = Stage()
    start = {"started": tokens_pb2.Started(), "answer_format": FORM}
    stage.bus.stored = [thought(0, "I s", **start), thought(1, "ee.</th"), thought(2, "ink> A")]
    stage.bus.live = [finished("a1", offset=3)]
    assert await resumed(stage, 2) == [("ink> A", "", "A"), ("", "", "")]


async def test_a_chat_is_read_also_when_nothing_of_it_was_stored_yet() -> None:
    stage = Stage()
    stage.bus.reply = scheduler_pb2.ReaderReply(was_found=True, has_answer_format=True)
    start = {"started": tokens_pb2.Started(), "answer_format": FORM}
    stage.bus.live = [thought(0, "a", **start), thought(1, "</think>b"), finished("a1", offset=2)]
    assert await resumed(stage, 1) == [("</think>b", "", "b")]


async def test_a_chat_whose_first_tokens_are_not_stored_any_more_is_not_told_as_plain_text() -> None:
    """Its scheduler knows that it is no plain text; without one, the terminal chunk may tell."""
    for stored, reply in (
        ([thought(5, "x")], scheduler_pb2.ReaderReply(was_found=True, has_answer_format=True)),
        ([thought(5, "x"), finished("a1", offset=6, answer_format=FORM)], scheduler_pb2.ReaderReply()),
    ):
        stage = Stage(gap_limit_s=0.0)
        stage.bus.stored, stage.bus.reply = stored, reply
        with pytest.raises(Unavailable) as lost:
            await resumed(stage, 5)
        assert lost.value.reason == "TOKENS_LOST"


async def test_a_chat_is_read_whole_whose_chunks_are_stored_after_the_first_look() -> None:
    """It is answered from the cache: no scheduler knows it."""
    stage = Stage()
    start = {"started": tokens_pb2.Started(), "answer_format": FORM}
    stage.bus.stored = [thought(0, "a", **start), thought(1, "</think>b")]
    stage.bus.stored += [finished("a1", offset=2, answer_format=FORM)]
    stage.bus.looks_before_stored = 1
    assert await resumed(stage, 1) == [("</think>b", "", "b"), ("", "", "")]


async def test_a_plain_stream_is_resumed_without_its_first_tokens() -> None:
    stage = Stage()
    stage.bus.stored, stage.bus.live = [thought(5, "x")], [finished("a1", offset=6)]
    stage.bus.reply = scheduler_pb2.ReaderReply(was_found=True)
    assert await resumed(stage, 5) == [("x",), ("",)]

    stage = Stage()  # it has ended: its scheduler does not know it any more
    stage.bus.stored = [thought(5, "x"), finished("a1", offset=6)]
    assert await resumed(stage, 5) == [("x",)]


async def answer(stage: Stage, *, window_s: int) -> None:
    job = scheduler_pb2.InferenceRequest(
        request_id="r1", attempt_id="a1", model="demo", resume_window_s=window_s
    )
    async with stage.generation() as generation:
        await generation.submit(prepared(job, is_cached=True))
        assert [chunk async for chunk in generation]
    await stage.background.finish(5)


async def test_an_answer_from_the_cache_is_published_as_soon_as_nats_takes_it() -> None:
    stage = Stage()
    stage.bus.refused_publishes = 2
    await answer(stage, window_s=30)
    chunks = [tokens_pb2.TokenChunk.FromString(data) for data in stage.bus.published]
    assert [chunk.offset for chunk in chunks] == [0, 0, 1, 2, 3]
    assert (chunks[-1].attempt_id, chunks[-1].model) == ("a1", "demo")


async def test_an_answer_that_cannot_be_resumed_is_not_published_again() -> None:
    stage = Stage()
    stage.bus.refused_publishes = 1
    await answer(stage, window_s=0)
    assert stage.bus.published == []


def held_to(*texts: str) -> guardrails_pb2.GuardrailRules:
    blocked = [guardrails_pb2.BlockedText(text=text) for text in texts]
    return guardrails_pb2.GuardrailRules(blocked=blocked, guards_stream=True)


async def guarded(stage: Stage, *, window_s: int = 0) -> list[tokens_pb2.TokenChunk]:
    """What the client of a guarded request gets."""
    job = scheduler_pb2.InferenceRequest(
        request_id="r1",
        tenant="acme",
        model="demo",
        prompt_token_ids=[1, 2],
        attempt_id="a1",
        resume_window_s=window_s,
    )
    async with stage.generation(reserves=True) as generation:
        await generation.submit(prepared(job))
        return [chunk async for chunk in generation]


def told(chunks: list[tokens_pb2.TokenChunk]) -> tuple[str, int, generation_pb2.FinishReason.ValueType]:
    """Text, tokens and finish reason."""
    text = "".join(chunk.text for chunk in chunks)
    return text, sum(len(chunk.token_ids) for chunk in chunks), chunks[-1].finished.reason


def cancels(stage: Stage) -> list[str]:
    """The attempts that were cancelled."""
    return [scheduler_pb2.CancelNotice.FromString(data).attempt_id for data in stage.bus.published]


@pytest.mark.parametrize("window_s", [0, 30])
async def test_an_answer_with_a_blocked_text_ends_there_and_its_job_is_cancelled(window_s: int) -> None:
    stage = Stage()
    stage.rules = held_to("bad")
    stage.bus.live = [thought(i, text) for i, text in enumerate(("so ", "far ", "b", "ad", " on"))]
    chunks = await guarded(stage, window_s=window_s)
    assert told(chunks) == ("so far ", 1, generation_pb2.FINISH_REASON_CONTENT_FILTER)
    assert chunks[-1].finished.usage.prompt_tokens == 2
    assert chunks[-1].finished.usage.completion_tokens == 5
    stage.bus.live = [finished("a1", offset=5)]
    await stage.end()
    assert cancels(stage) == ["a1"]
    (settled,) = stage.settled
    assert (settled.outcome, settled.usage.completion_tokens) == ("content_filter", 1)


async def test_an_answer_that_ends_with_a_blocked_text_is_settled_as_its_job_ended() -> None:
    stage = Stage()
    stage.rules = held_to("bad")
    stage.bus.live = [thought(0, "so ba"), thought(1, "d"), finished("a1", offset=2)]
    assert told(await guarded(stage)) == ("so ", 0, generation_pb2.FINISH_REASON_CONTENT_FILTER)
    await stage.end()
    assert cancels(stage) == []
    (settled,) = stage.settled
    assert (settled.outcome, settled.usage.completion_tokens) == ("content_filter", 1)


async def test_an_answer_with_nothing_blocked_is_what_it_is_without_guardrails() -> None:
    said = []
    for rules in (None, held_to("bad", "far from")):
        stage = Stage()
        stage.rules = rules
        stage.bus.live = [thought(i, text) for i, text in enumerate(("so ", "far ", "fr", "ee"))]
        stage.bus.live.append(finished("a1", offset=4))
        chunks = await guarded(stage)
        said.append((*told(chunks), chunks[-1].finished.usage))
        await stage.end()
    assert said[0] == said[1]
    assert said[0][0] == "so far free"


@pytest.mark.parametrize("offset", [0, 1, 3])
async def test_a_resumed_answer_is_held_to_guardrails_from_its_first_token(offset: int) -> None:
    stage = Stage()
    stage.rules = held_to("far bad")
    stage.bus.reply = scheduler_pb2.ReaderReply(was_found=True, attempt_id="a1", model="demo")
    stage.bus.stored = [thought(i, text) for i, text in enumerate(("so ", "far ", "b", "ad", " on"))]
    async with stage.generation("Resume") as generation:
        await generation.resume(offset)
        chunks = [chunk async for chunk in generation]
    await stage.end()
    assert told(chunks)[2] == generation_pb2.FINISH_REASON_CONTENT_FILTER
    assert told(chunks)[0] == ("so " if offset == 0 else "")
    assert stage.models_asked == ["demo"]


async def test_a_resumed_answer_with_nothing_blocked_goes_on_where_its_client_was() -> None:
    stage = Stage()
    stage.rules = held_to("bad")
    stage.bus.stored = [thought(i, f"{i} ") for i in range(4)] + [finished("a1", offset=4, model="demo")]
    async with stage.generation("Resume") as generation:
        await generation.resume(2)
        chunks = [chunk async for chunk in generation]
    await stage.end()
    assert told(chunks)[0] == "2 3 "
    assert chunks[0].offset == 2
    assert stage.models_asked == ["demo"]


async def test_an_answer_from_the_cache_is_held_to_guardrails_too() -> None:
    stage = Stage()
    stage.rules = held_to("xxx")
    job = scheduler_pb2.InferenceRequest(request_id="r1", tenant="acme", model="demo", attempt_id="a1")
    async with stage.generation(reserves=True) as generation:
        await generation.submit(prepared(job, is_cached=True))
        chunks = [chunk async for chunk in generation]
    await stage.end()
    assert told(chunks) == ("", 0, generation_pb2.FINISH_REASON_CONTENT_FILTER)


def finished(attempt_id: str, *, model: str = "", offset: int = 0, **fields: Any) -> bytes:
    end = tokens_pb2.Finished(reason=STOP, usage=generation_pb2.Usage(prompt_tokens=2, completion_tokens=1))
    chunk = tokens_pb2.TokenChunk(
        epoch=1,
        offset=offset,
        token_ids=[7],
        finished=end,
        attempt_id=attempt_id,
        model=model,
        **fields,
    )
    return chunk.SerializeToString()
