"""An engine with llama.cpp itself, stepped by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.worker import DEMO_MODEL

from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.llama.draft_model import DraftModel
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.media.images import Images
from inferflux.worker.engine.memory.ledger_check import difference
from inferflux.worker.engine.step.clock import Clock
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.step.drafting import Drafting
from inferflux.worker.engine.tiers.tiers import Tiers


def load(path: Path = DEMO_MODEL, **options: Any) -> Backend:
    """A model with a small cache, on one thread."""
    usual: dict[str, Any] = {
        "slots": 4,
        "sequences": 24,
        "batch_tokens": 512,
        "kv_cells": 4096,
        "threads": 1,
        "flash_attention": True,
    }
    return Backend(engine_pb2.EngineConfig(model_path=str(path), **(usual | options)))


class Served:
    """An engine, and what it answered.

    Attributes:
        tokens: by request id. cached: `cached_prompt_tokens` by request id.
        chunks: all that have been emitted.
        reported: what is cached, as the worker learns it, by entry.
        drafted, accepted: tokens of all requests.
        draft_model_errors: why it drafts no more.
        pictures: by object, for requests that have them.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        has_prefix_cache: bool = True,
        host_bytes: int = 1 << 28,
        clock: Clock | None = None,
        speculation: generation_pb2.Speculation.ValueType = generation_pb2.SPECULATION_OFF,
        draft_model: DraftModel | None = None,
        is_deterministic: bool = False,
    ) -> None:
        self.backend = backend
        self.chunks: list[tokens_pb2.TokenChunk] = []
        self.reported: dict[int, engine_pb2.CachedPrefix] = {}
        self.drafted = self.accepted = 0
        self.draft_model_errors: list[str] = []
        self.pictures: dict[str, engine_pb2.EngineImage] = {}
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.stats = engine_pb2.StepStats()
        self.queries = self.hits = self.evictions = self.swap_ins = 0
        self.restored = self.prefilled = 0
        self.engine = Engine(
            backend,
            worker_id="w",
            max_itl_factor=5.0,
            step_limit_s=0.2,
            tiers=Tiers(backend.identity, host_bytes=host_bytes, is_divisible=backend.cuts_states),
            has_prefix_cache=has_prefix_cache,
            clock=clock,
            speculation=speculation,
            draft_model=draft_model,
            is_deterministic=is_deterministic,
            images=Images(backend.projector, max_bytes=1 << 28) if backend.projector else None,
        )

    def run(self, *items: worker_pb2.BatchItem, cancelled: str = "") -> None:
        """Serve these at once, and to their ends; of one it may be cancelled after the first step."""
        for slot, item in enumerate(items):
            item.slot = slot
            self.engine.start(item)
        self.step()
        self.engine.cancel(cancelled, is_silent=True)
        while self.engine.residents:
            for sequence in self.engine.residents.values():
                if not sequence.is_running:  # it was evicted
                    taken = {s.slot for s in self.engine.running.values()}
                    self.resume(sequence.key, min(set(range(len(items))) - taken))
            self.step()

    def draft_by(self, drafting: Drafting) -> None:
        """Have drafts of this, in place of the engine's own."""
        engine = self.engine
        engine._parts = tuple(drafting if part is engine._drafting else part for part in engine._parts)
        engine._drafting = engine._sampled.drafting = drafting

    def resume(self, key: str, slot: int) -> None:
        self.engine.resume(engine_pb2.EngineResume(key=key, epoch=1, slot=slot, run=1))

    def start_and_step(self, item: worker_pb2.BatchItem, *, until_tokens: int) -> None:
        """Serve a request until it has this many tokens."""
        self.engine.start(item)
        while len(self.tokens.get(item.request.request_id, [])) < until_tokens:
            self.step()

    def finish(self, request_id: str) -> None:
        """Serve on until a request has ended."""
        while request_id not in self.cached:
            self.step()

    def swap_out(self, key: str) -> None:
        """Evict a request as one that is less urgent than others is."""
        self.engine._planning.evict(self.engine.residents[key])

    def step(self) -> None:
        self.engine.step()
        report = self.engine.take_report()
        if report is None:
            assert self.engine._images.is_busy
            return
        for name in report.step.wanted_images:
            self.engine.receive(self.pictures[name])
        for emission in report.step.emissions:
            chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
            self.chunks.append(chunk)
            self.tokens.setdefault(chunk.request_id, []).extend(chunk.token_ids)
            if chunk.HasField("finished"):
                self.cached[chunk.request_id] = chunk.finished.usage.cached_prompt_tokens
        if report.step.draft_model_error:
            self.draft_model_errors.append(report.step.draft_model_error)
        self.reported |= {each.entry: each for each in report.step.cached}
        self.stats = report.step.stats
        self.drafted += self.stats.draft_tokens
        self.accepted += sum(self.stats.accepted_draft_tokens)
        self.queries += self.stats.prefix_queries
        self.hits += self.stats.prefix_hits
        self.evictions += self.stats.prefix_evictions
        self.swap_ins += self.stats.swap_ins
        self.restored += self.stats.host.hits
        self.prefilled += self.stats.prefill_tokens

    def check_cells(self) -> None:
        """The ledger says of each sequence what llama.cpp says."""
        ledger = self.engine._memory.ledger
        sequences = {s.seq_id: s for s in self.engine.residents.values()}
        holds_all = self.backend.sharing.is_divisible
        for seq_id in range(self.backend.sequences):
            positions = self.backend.positions(seq_id)
            cells, sequence = ledger.cells_of(seq_id), sequences.get(seq_id)
            last = None if sequence is None else sequence.images.position(cells - 1)
            assert difference(seq_id, cells, positions, holds_all=holds_all, last_wanted=last) is None
