"""Sequences made of requests that arrive."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inferflux.common.contract.callers.cache_scope import cache_scope_of
from inferflux.common.contract.request_times import deadline_s, monotonic_s, queue_ms
from inferflux.common.contract.requests.answer_spelling import control_texts
from inferflux.common.contract.requests.images import without_placeholders
from inferflux.common.text.answers.families import syntax_in
from inferflux.v1 import generation_pb2, scheduler_pb2, worker_pb2
from inferflux.worker.engine.constraints.reasoning import Reasoning
from inferflux.worker.engine.media.images import SequenceImages
from inferflux.worker.engine.sampling.bans import Bans
from inferflux.worker.engine.sampling.breakers import BreakerFinder
from inferflux.worker.engine.sampling.prompt_scores import PromptScores
from inferflux.worker.engine.sampling.sampling import Sampler

from .answer import Answer, PieceSource
from .facets import Origin, Reuse, Timestamps
from .sequence import Sequence
from .text import TextAssembler


def sequence_of(
    item: worker_pb2.BatchItem,
    *,
    arrival: int,
    now_s: float,
    unix_s: float,
    pieces: PieceSource,
    breakers: BreakerFinder | None = None,
    images: SequenceImages | None = None,
    is_deterministic: bool = False,
) -> Sequence:
    """A sequence ready to prefill, its sampler and text brought up to the tokens already emitted.

    Args:
        arrival: order among sequences of the same urgency key.
        now_s: monotonic clock. unix_s: wall clock.
        pieces: the vocabulary, for replaying text and for its end-of-generation tokens.
        breakers: of the same vocabulary, for DRY; without one, it has none.
        images: of its prompt. Penalties do not look at their cells.
        is_deterministic: whether its tokens are the same whatever else is cached or runs.
    """
    request = item.request
    params = request.params
    generated = list(request.generated_token_ids)
    history = list(request.prompt_token_ids) + generated
    n_prompt = len(request.prompt_token_ids)
    tokens = np.zeros(n_prompt + params.max_tokens, np.int32)
    tokens[: len(history)] = history
    said = without_placeholders(history) if images else history
    ends = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        ends |= pieces.eog
    form = request.answer_format if request.HasField("answer_format") else None
    answer = Answer(
        TextAssembler(params.stop, params.min_tokens),
        _shown_markers(request, pieces),
        form,
        _reasoning_of(form, params, pieces) if form is not None and form.reasoning else None,
    )
    for token in generated:
        answer.push(token, pieces)
    return Sequence(
        key=f"{request.tenant}.{request.request_id}",
        epoch=request.epoch,
        slot=None,
        order=(item.urgency_key, arrival),
        tokens=tokens,
        prompt_tokens=n_prompt,
        max_tokens=params.max_tokens,
        end_tokens=ends,
        sampler=Sampler(
            params.sampling,
            said,
            breakers.of(params.sampling) if breakers else None,
            Bans.of((run.ids for run in params.banned), ends, params.min_tokens, generated),
        ),
        answer=answer,
        origin=_origin_of(item),
        times=Timestamps(
            started_s=now_s,
            enqueued_s=monotonic_s(request.enqueued_unix_ms, now_s=now_s, unix_s=unix_s),
            queue_ms=queue_ms(request, unix_s=unix_s),
            deadline_s=deadline_s(request, now_s=now_s, unix_s=unix_s),
        ),
        is_deterministic=is_deterministic,
        images=images or SequenceImages(),
        run=item.run,
        generated=len(generated),
        yields_at=len(generated) + item.token_budget if item.token_budget else 0,
        reuse=Reuse(has_begun=request.epoch > 1),
        prompt_scores=_scores(params) if not generated and not images else None,
    )


def _origin_of(item: worker_pb2.BatchItem) -> Origin:
    request = item.request
    return Origin(
        request_id=request.request_id,
        attempt_id=request.attempt_id,
        model=request.model,
        adapter_name=request.adapter,
        adapter=request.adapter_digest,
        cache_scope=cache_scope_of(request),
        is_retry=request.epoch > 1,
        seeks_state=item.seeks_state,
        takes_state=item.HasField("state_from"),
    )


def _reasoning_of(
    form: generation_pb2.AnswerFormat, params: generation_pb2.GenerationParams, pieces: PieceSource
) -> Reasoning:
    if not params.HasField("max_reasoning_tokens"):
        return Reasoning(form)
    closing_text = syntax_in(form.syntax, form.reasoning).thought.end
    closing = pieces.tokenize(closing_text.encode(), add_special=False, parse_special=True)
    return Reasoning(form, most=params.max_reasoning_tokens, closing=closing)


def _scores(params: generation_pb2.GenerationParams) -> PromptScores | None:
    return PromptScores(params.prompt_logprobs) if params.HasField("prompt_logprobs") else None


def _shown_markers(request: scheduler_pb2.InferenceRequest, pieces: PieceSource) -> Mapping[int, bytes]:
    """Control tokens that spell tool calls and reasoning, each with its text: a reader needs to see them."""
    form, calls = request.answer_format, request.params.constraint.tool_calls
    given = form.syntax if form.HasField("syntax") else calls.syntax
    syntax = syntax_in(given, form.reasoning)
    found = ((marker, pieces.control_token(marker)) for marker in control_texts(syntax))
    return {token: marker.encode() for marker, token in found if token is not None}
