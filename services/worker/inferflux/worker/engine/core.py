"""The engine's step: take up what arrived, plan, decode, sample, report."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2

from .budget import StepBudget
from .kv import CellLedger
from .native import Backend
from .planner import Share, plan_step, split
from .sampling import BadLogits, log_probabilities, top_ids
from .sequence import Sequence, sequence_of

_DEADLINE_EXCEEDED = 4
_INTERNAL = 13


class Engine:
    """Runs every sequence on board, one token each per step.

    Args:
        backend: the loaded model.
        worker_id: named in `started` events.
        step_stretch, step_limit_s: see `StepBudget`.
    """

    def __init__(self, backend: Backend, *, worker_id: str, step_stretch: float, step_limit_s: float) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._cells = CellLedger(backend.cells)
        self._budget = StepBudget(backend.batch_tokens, step_stretch, step_limit_s, backend.mixed_tokens)
        for n_prefill, n_decoding, seconds in backend.warm_up():
            self._budget.observe(n_prefill, n_decoding, seconds)
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0
        self._report = engine_pb2.StepReport()

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def start(self, item: worker_pb2.BatchItem) -> None:
        """Take a request up. The worker has checked it against slots, cells and vocabulary."""
        self._arrivals += 1
        sequence = sequence_of(
            item,
            arrival=self._arrivals,
            now_s=time.monotonic(),
            unix_s=time.time(),
            pieces=self._backend.vocab,
        )
        self._cells.reserve(sequence.slot, sequence.cells)
        self._sequences[sequence.key] = sequence

    def cancel(self, key: str, *, is_silent: bool) -> None:
        """End a request; nothing if it is not on board."""
        sequence = self._sequences.get(key)
        if sequence is None:
            return
        if is_silent:
            self._leave(sequence)
        else:
            self._finish(sequence, self._chunk(sequence), generation_pb2.FINISH_REASON_CANCELLED)

    def take_report(self) -> engine_pb2.EngineReport | None:
        """What is to be told since the last call, if anything."""
        report = self._report
        if not (report.emissions or report.ended or report.HasField("stats")):
            return None
        self._report = engine_pb2.StepReport()
        return engine_pb2.EngineReport(step=report)

    def step(self) -> None:
        """Give every decoding sequence its token and prompts their share.

        Raises:
            DecodeError: the engine has to start again.
        """
        began = time.perf_counter()
        self._expire(time.time())
        decoding, prefilling = split(self._sequences.values())
        if not decoding and not prefilling:
            return
        plan = plan_step(decoding, prefilling, self._budget.tokens(len(decoding), len(prefilling)))
        for share in plan.shares:
            self._cells.use(share.sequence.slot, share.n)
        logits = self._backend.decode(plan)
        decoded = time.perf_counter()
        self._advance(plan.shares)
        self._sample([share.sequence for share in plan.shares if share.wants_logits], logits)
        ended = time.perf_counter()
        self._budget.observe(plan.n_prefill, len(decoding), ended - began)
        stats = self._report.stats
        stats.prefill_tokens = plan.n_prefill
        stats.decode_tokens = len(decoding)
        stats.decode_us = int((decoded - began) * 1e6)
        stats.step_us = int((ended - began) * 1e6)
        stats.kv_cells_used = self._cells.used
        stats.kv_cells_reserved = self._cells.reserved
        stats.sequences = len(self._sequences)

    def _advance(self, shares: Iterable[Share]) -> None:
        for share in shares:
            sequence = share.sequence
            sequence.position += share.n
            if not share.wants_logits:
                sequence.pending = sequence.pending[share.n :]
                if not sequence.is_announced:
                    self._emit(sequence, self._announced(sequence, self._chunk(sequence)))

    def _sample(self, sequences: list[Sequence], logits: NDArray[np.float32]) -> None:
        """Choose and report the next token of each; row i of `logits` belongs to sequence i."""
        if not sequences:
            return
        unix_us = time.time_ns() // 1000
        now = time.monotonic()
        greedy: list[int] | None = None
        if any(s.sampler.is_plain_greedy for s in sequences):
            best = logits.argmax(axis=1)
            finite = np.isfinite(logits[np.arange(len(sequences)), best])
            greedy = np.where(finite, best, -1).tolist()
        for row, sequence in enumerate(sequences):
            try:
                if greedy is not None and sequence.sampler.is_plain_greedy:
                    token = greedy[row]
                    if token < 0:
                        raise BadLogits("the model gave no finite logits")
                else:
                    token = sequence.sampler.choose(logits[row], sequence.generated)
            except BadLogits as error:
                self._fail(sequence, _INTERNAL, "BAD_LOGITS", str(error))
                continue
            if sequence.first_token_s == 0.0:
                sequence.first_token_s = now
            self._accept(sequence, token, logits[row], unix_us)

    def _accept(self, sequence: Sequence, token: int, logits: NDArray[np.float32], unix_us: int) -> None:
        chunk = self._chunk(sequence)
        if not sequence.is_announced:
            self._announced(sequence, chunk)
        chunk.token_ids.append(token)
        chunk.sampled_unix_us = unix_us
        sequence.sampler.accept(token)
        sequence.generated += 1
        chunk.text = sequence.text.push(self._backend.vocab.piece(token))
        if sequence.sampler.n_logprobs is not None:
            chunk.logprobs.append(self._logprobs(logits, token, sequence.sampler.n_logprobs))
        if sequence.text.is_stopped or token in sequence.end_tokens:
            self._finish(sequence, chunk, generation_pb2.FINISH_REASON_STOP)
        elif sequence.generated >= sequence.max_tokens:
            self._finish(sequence, chunk, generation_pb2.FINISH_REASON_LENGTH)
        else:
            sequence.pending = np.array((token,), np.int32)
            self._emit(sequence, chunk)

    def _logprobs(self, logits: NDArray[np.float32], token: int, n_top: int) -> tokens_pb2.TokenLogprobs:
        ids = np.concatenate(([token], top_ids(logits, n_top) if n_top else np.empty(0, np.int64)))
        entries = [
            tokens_pb2.TokenLogprob(
                token_id=int(i),
                text=self._backend.vocab.piece(int(i)).decode("utf-8", "replace"),
                logprob=float(p),
            )
            for i, p in zip(ids, log_probabilities(logits, ids), strict=True)
        ]
        return tokens_pb2.TokenLogprobs(chosen=entries[0], top=entries[1:])

    def _expire(self, unix_s: float) -> None:
        late = [s for s in self._sequences.values() if s.deadline_unix_s <= unix_s]
        for sequence in late:
            message = "the deadline passed while generating"
            self._fail(sequence, _DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", message)

    def _chunk(self, sequence: Sequence) -> tokens_pb2.TokenChunk:
        return tokens_pb2.TokenChunk(
            request_id=sequence.request_id, epoch=sequence.epoch, offset=sequence.generated
        )

    def _announced(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> tokens_pb2.TokenChunk:
        """`chunk` with the `started` event: its own message when the prompt takes several steps, else with
        the first token."""
        chunk.started.worker_id = self._worker_id
        sequence.is_announced = True
        return chunk

    def _emit(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk) -> None:
        self._report.emissions.add(
            key=sequence.key,
            chunk=chunk.SerializeToString(),
            generated_tokens=sequence.generated,
            epoch=sequence.epoch,
        )

    def _finish(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk, reason: int) -> None:
        """The terminal chunk of a generation that ended as it should; `chunk` may carry its last token."""
        now = time.monotonic()
        chunk.text += sequence.text.finish()
        finished = chunk.finished
        finished.reason = generation_pb2.FinishReason.ValueType(reason)
        finished.usage.prompt_tokens = sequence.prompt_tokens
        finished.usage.completion_tokens = sequence.generated
        first = sequence.first_token_s or now
        finished.timings.queue_ms = sequence.queue_ms
        finished.timings.prefill_ms = (first - sequence.started_s) * 1000
        finished.timings.decode_ms = (now - first) * 1000
        outcome = generation_pb2.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()
        self._end(sequence, chunk, outcome)

    def _fail(self, sequence: Sequence, code: int, reason: str, message: str) -> None:
        chunk = self._chunk(sequence)
        chunk.failed.code = code
        chunk.failed.reason = reason
        chunk.failed.message = message
        self._end(sequence, chunk, reason.lower())

    def _end(self, sequence: Sequence, chunk: tokens_pb2.TokenChunk, outcome: str) -> None:
        self._emit(sequence, chunk)
        self._report.ended.add(
            key=sequence.key,
            epoch=sequence.epoch,
            outcome=outcome,
            prompt_tokens=sequence.prompt_tokens,
            completion_tokens=sequence.generated,
        )
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._backend.forget(sequence.slot)
        self._cells.release(sequence.slot)
        del self._sequences[sequence.key]
