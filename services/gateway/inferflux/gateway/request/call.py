"""The call that a generation answers, and its span: from the call to its last chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from google.protobuf.message import Message

from inferflux.api.finish_reasons import NAMES
from inferflux.common.calls.audit.entry import TextDigest
from inferflux.common.calls.audit.writer import NO_AUDIT
from inferflux.common.calls.calls import CallContext
from inferflux.common.contract import attempts, subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.common.prefixes.names import tier_name
from inferflux.common.process import logs
from inferflux.common.tracing import Kind, Span, Tracer, names, parse
from inferflux.gateway.policy.caller import Caller
from inferflux.v1 import generation_pb2, scheduler_pb2

# RPC -> what OpenTelemetry calls such an operation.
_OPERATIONS: Final = {
    "Chat": "chat",
    "Generate": "text_completion",
    "Resume": "resume",
    "Embed": "embeddings",
    "Rerank": "rerank",
}

_FINISH_REASONS = frozenset(NAMES.values())


@dataclass(frozen=True, slots=True)
class Call:
    """A call that policy has admitted.

    Attributes:
        model: as the client named it; empty for Resume.
        request_id: of the generation, which for Resume is not that of the call.
        span: of the call.
        prompt: what the call asks to be answered, for its audit line.
    """

    method: str
    model: str
    request_id: str
    caller: Caller
    span: Span
    context: CallContext
    prompt: TextDigest = field(default_factory=NO_AUDIT.text)

    def new_attempt_id(self, asked: Message) -> str:
        """Of a job that answers the call, which asks for this."""
        idempotency_key = self.context.idempotency_key
        if not idempotency_key:
            return attempts.new()
        return attempts.new(
            caller=self.caller.key_id,
            idempotency_key=idempotency_key,
            asked=asked.SerializeToString(deterministic=True),
        )

    @property
    def subject(self) -> str:
        return subjects.tokens(self.caller.tenant, self.request_id)


class RequestSpan:
    """A context that ends the span of an admitted call with the call, whichever way that ends.

    Args:
        traceparent: of the client's span; "" without one.
        at_s: when the call came, before it was admitted, in Unix seconds.
    """

    def __init__(self, tracer: Tracer, method: str, traceparent: str, *, at_s: float) -> None:
        self._span = tracer.start(
            method.lower(),
            parent=traceparent,
            kind=Kind.SERVER,
            attributes={names.OPERATION: _OPERATIONS[method], names.PROVIDER: "inferflux"},
            at_s=at_s,
        )
        if (context := parse(self._span.traceparent)) is not None:
            logs.bind_request(trace_id=context.trace_id)

    def __enter__(self) -> Span:
        return self._span

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if isinstance(error, InferFluxError):
            self._span.fail(error.reason.lower(), error.message)
        elif isinstance(error, Exception):
            self._span.fail("internal")
        self._span.end()


def note_caller(span: Span, tenant: str, request_id: str) -> None:
    """Policy has admitted the call, which submits or resumes this request."""
    span.event("admitted")
    span.set({names.TENANT: tenant, names.REQUEST_ID: request_id})


def note_job(span: Span, method: str, job: scheduler_pb2.InferenceRequest, *, asked_priority: int) -> None:
    """The request has been checked and tokenized. Its model is one that is served, and may be in the span's
    name.
    """
    span.event("prepared")
    span.rename(f"{method.lower()} {job.model}")
    span.set(
        {
            names.REQUEST_MODEL: job.model,
            names.MAX_TOKENS: job.params.max_tokens,
            names.INPUT_TOKENS: len(job.prompt_token_ids),
            names.PRIORITY: job.priority,
            **({names.ASKED_PRIORITY: asked_priority} if asked_priority != job.priority else {}),
        }
    )


def note_end(span: Span, outcome: str, usage: generation_pb2.Usage) -> None:
    """It has ended, with this finish or error reason."""
    tier = tier_name(usage.cached_prompt_tier)
    span.set(
        {
            names.OUTCOME: outcome,
            **({names.CACHED_TIER: tier} if tier else {}),
            **({names.FINISH_REASONS: [outcome]} if outcome in _FINISH_REASONS else {}),
            names.INPUT_TOKENS: usage.prompt_tokens,
            names.CACHED_TOKENS: usage.cached_prompt_tokens,
            names.OUTPUT_TOKENS: usage.completion_tokens,
            names.CACHED_OUTPUT_TOKENS: usage.cached_completion_tokens,
        }
    )
