"""The chunks of a sequence's token stream, and what the worker learns of its end (pure).

Nothing in them says whose they are: a sequence's `chunk_head` does, which is serialized once.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

from inferflux.api.finish_reasons import name_of
from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2
from inferflux.worker.engine.plan.acceptance import Accepted
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.sampling.chunk_logprobs import PieceTexts, fill
from inferflux.worker.engine.sampling.logprobs import Logprobs


class PlainChunk:
    """Serializes the chunks of most steps: one token and its text, nothing else.

    One message is filled again for each: a new one takes twice as long.
    """

    def __init__(self) -> None:
        self._chunk = tokens_pb2.TokenChunk(token_ids=[0])
        self._token_ids = self._chunk.token_ids

    def serialized(self, offset: int, token: int, text: str, sampled_unix_us: int) -> bytes:
        """Return the serialized bytes that follow a sequence's `chunk_head`."""
        chunk = self._chunk
        chunk.offset = offset
        self._token_ids[0] = token
        chunk.text = text
        chunk.sampled_unix_us = sampled_unix_us
        return chunk.SerializeToString()


def empty(sequence: Sequence, offset: int | None = None) -> tokens_pb2.TokenChunk:
    """A chunk from token `offset` on; without an offset after all that was generated."""
    return tokens_pb2.TokenChunk(offset=sequence.generated if offset is None else offset)


def announce(sequence: Sequence, chunk: tokens_pb2.TokenChunk, worker_id: str) -> tokens_pb2.TokenChunk:
    """`chunk` with the `started` event: its own message when the prompt takes several steps, else with the
    first token."""
    chunk.attempt_id = sequence.origin.attempt_id
    chunk.started.worker_id = worker_id
    chunk.started.prompt_tokens = sequence.prompt_tokens
    chunk.started.cached_prompt_tokens = sequence.reuse.cached_prompt_tokens
    chunk.started.cached_prompt_tier = sequence.cached_prompt_tier
    _add_format(sequence, chunk)
    sequence.times.is_announced = True
    return chunk


def add_tokens(
    chunk: tokens_pb2.TokenChunk,
    accepted: Accepted,
    logprobs: Several[Logprobs | None],
    sampled_unix_us: int,
    pieces: PieceTexts,
) -> None:
    """Put the tokens of a step into a chunk.

    Args:
        logprobs: of each token; None where none are wanted.
    """
    chunk.token_ids.extend(accepted.tokens)
    chunk.text = accepted.text
    chunk.sampled_unix_us = sampled_unix_us
    for token, of_token in zip(accepted.tokens, logprobs, strict=False):
        if of_token is not None:
            fill(chunk.logprobs.add(), token, of_token.chosen, of_token.top, pieces)


def checked(
    sequence: Sequence, mismatch: str
) -> tuple[tokens_pb2.TokenChunk, generation_pb2.FinishReason.ValueType]:
    """The last chunk of a complete answer that was checked, and why it ends.

    Args:
        mismatch: why it is not what was asked for; "" if it is.
    """
    chunk = empty(sequence)
    if not mismatch:
        return chunk, generation_pb2.FINISH_REASON_STOP
    chunk.finished.mismatch = mismatch
    return chunk, generation_pb2.FINISH_REASON_SCHEMA_MISMATCH


def finish(
    sequence: Sequence,
    chunk: tokens_pb2.TokenChunk,
    reason: generation_pb2.FinishReason.ValueType,
    now_s: float,
) -> str:
    """Make `chunk`, which may carry the last tokens, the terminal one of a generation that went well.

    Args:
        now_s: by the monotonic clock.

    Returns:
        The outcome.
    """
    chunk.text += sequence.answer.text.finish()
    finished = chunk.finished
    finished.reason = reason
    finished.stop = sequence.answer.text.stop
    finished.usage.prompt_tokens = sequence.prompt_tokens
    finished.usage.cached_prompt_tokens = sequence.reuse.cached_prompt_tokens
    finished.usage.cached_prompt_tier = sequence.cached_prompt_tier
    finished.usage.completion_tokens = sequence.generated
    if sequence.answer.reasoning is not None:
        finished.usage.reasoning_tokens = sequence.answer.reasoning.n_tokens
    first_s = now_s if sequence.times.first_token_s is None else sequence.times.first_token_s
    finished.timings.queue_ms = sequence.times.queue_ms
    finished.timings.prefill_ms = (first_s - sequence.times.started_s) * 1000
    finished.timings.decode_ms = (now_s - first_s) * 1000
    if sequence.drafts is not None:
        finished.timings.draft_n = sequence.drafts.drafted
        finished.timings.draft_n_accepted = sequence.drafts.accepted
    return name_of(reason)


def close(sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> None:
    """Say in a terminal chunk which attempt it ends, of which model, and how its answer is read."""
    chunk.attempt_id = sequence.origin.attempt_id
    chunk.model, chunk.adapter = sequence.origin.model, sequence.origin.adapter_name
    _add_format(sequence, chunk)


def _add_format(sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> None:
    if sequence.answer.form is not None:
        chunk.answer_format.CopyFrom(sequence.answer.form)


def ended(sequence: Sequence, outcome: str) -> engine_pb2.EngineFinished:
    """Return the message that tells the worker of a sequence that has had its terminal chunk."""
    return engine_pb2.EngineFinished(
        key=sequence.key,
        epoch=sequence.epoch,
        outcome=outcome,
        prompt_tokens=sequence.prompt_tokens,
        cached_prompt_tokens=sequence.reuse.cached_prompt_tokens,
        cached_prompt_tier=sequence.cached_prompt_tier,
        completion_tokens=sequence.generated,
        time_to_first_token_ms=sequence.times.time_to_first_token_ms,
    )
