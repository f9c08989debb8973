"""An engine of the demo model without a worker around it, and what it answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.constraints.constraints import Constraints
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.tiers import Tiers

DEMO_MODEL = Path(__file__).parents[2] / "models" / "inferflux-demo.gguf"


class Served:
    """An engine of the demo model, and what it answered, by request id.

    Args:
        tiers: with them, it caches prefixes.
    """

    made: ClassVar[list[Served]] = []

    def __init__(self, backend: Backend, tiers: Tiers[Sequence] | None = None) -> None:
        self.made.append(self)
        self.backend = backend
        self.tokens: dict[str, list[int]] = {}
        self.texts: dict[str, str] = {}
        self.ends: dict[str, tokens_pb2.TokenChunk] = {}
        self.n_steps = self.n_prefilled = 0
        self.pieces: list[engine_pb2.EnginePiece] = []
        self.imported: list[engine_pb2.EngineImported] = []
        self.engine = Engine(
            backend,
            worker_id="w",
            max_itl_factor=5.0,
            step_limit_s=0.2,
            tiers=tiers or Tiers.off(),
            constraints=Constraints(backend.vocab),
            has_prefix_cache=tiers is not None,
        )

    def start(self, *items: worker_pb2.BatchItem) -> None:
        for slot, item in enumerate(items):
            item.slot = slot
            self.engine.start(item)

    def run(self, *items: worker_pb2.BatchItem) -> None:
        """Serve these at once, and to their ends."""
        self.start(*items)
        while self.engine.residents:
            self.step()

    def step(self) -> None:
        self.engine.step()
        report = self.engine.take_report()
        if report is None:
            time.sleep(0.001)  # a constraint is being compiled
            return
        self.n_steps += report.step.stats.decode_us > 0
        self.n_prefilled += report.step.stats.prefill_tokens
        self.pieces += report.step.pieces
        self.imported += report.step.imported
        for emission in report.step.emissions:
            chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
            name = chunk.request_id
            self.tokens.setdefault(name, []).extend(chunk.token_ids)
            self.texts[name] = self.texts.get(name, "") + chunk.text
            if chunk.WhichOneof("event") in ("finished", "failed"):
                self.ends[name] = chunk

    def reason(self, name: str) -> str:
        """Why a generation ended."""
        reason = self.ends[name].finished.reason
        return generation_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_")


def demo_backend(*, batch_tokens: int = 512, kv_cells: int = 8192) -> Backend:
    config = engine_pb2.EngineConfig(
        model_path=str(DEMO_MODEL),
        slots=8,
        sequences=16,
        batch_tokens=batch_tokens,
        kv_cells=kv_cells,
        threads=1,
        flash_attention=True,
    )
    return Backend(config)
