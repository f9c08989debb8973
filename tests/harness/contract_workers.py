"""Workers that keep one contract: with each engine, and as the simulator and the scheduler's tests have them.

A test says the same to each, step by step, and compares what it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, cast

from harness.scheduler_world import SimWorker, World
from harness.worker_world import CONTEXT, VOCABULARY, WorkerHalves, WorkerWorld, next_token

from benchmarks.sim.contract import ContractWorker, Size
from benchmarks.sim.worker import ModelledWorker, WorkerModel
from inferflux.scheduler.core.types.jobs import Attempt, RequestKey
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.step.clock import Clock
from inferflux.worker.null.answers import token_at
from inferflux.worker.null.core import NullCore, Rates

SLOTS, SEQUENCES, CELLS = 3, 5, 100


class Told(Protocol):
    """What a test says to a worker, and is told by it."""

    def submit(
        self,
        *items: worker_pb2.BatchItem,
        phase: worker_pb2.Phase.ValueType = worker_pb2.PHASE_PREFILL,
        deschedule: tuple[worker_pb2.Deschedule, ...] = (),
        term: int = 0,
    ) -> worker_pb2.BatchAccepted: ...
    def command(self, command: worker_pb2.WorkerCommand) -> None: ...
    def cancel(self, request_id: str, attempt_id: str = "") -> None: ...

    def settle(self) -> None:
        """It makes a step, and tells what came of it."""

    def status(self) -> scheduler_pb2.WorkerStatus: ...
    def events(self) -> list[scheduler_pb2.WorkerEvent]: ...
    def chunks(self, request_id: str) -> list[tokens_pb2.TokenChunk]: ...

    def answer(self, item: worker_pb2.BatchItem) -> list[int]:
        """The tokens that a request has in the end."""


class WithLlama(WorkerWorld):
    """Of a model in memory."""

    def __init__(self) -> None:
        super().__init__(slots=SLOTS, sequences=SEQUENCES, cells=CELLS, host_bytes=1 << 20)

    def answer(self, item: worker_pb2.BatchItem) -> list[int]:
        tokens, prompt = list(item.request.prompt_token_ids), len(item.request.prompt_token_ids)
        while len(tokens) < prompt + item.request.params.max_tokens:
            tokens.append(next_token(tokens))
        return tokens[prompt:]


class WithNull(WorkerHalves[NullCore]):
    """Without a model."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        clock = Clock(lambda: time.monotonic() + self.ahead_s, lambda: time.time() + self.ahead_s)
        core = NullCore("w", Rates(0.1), kv_cells=CELLS, vocabulary_size=VOCABULARY, clock=clock)
        super().__init__(core, slots=SLOTS, cells=CELLS)

    def answer(self, item: worker_pb2.BatchItem) -> list[int]:
        params = item.request.params
        return [token_at(params.sampling.seed, index, VOCABULARY) for index in range(params.max_tokens)]


class _Modelled:
    """A `ContractWorker`. Token `i` of every request is `i`."""

    def __init__(self, worker: ContractWorker) -> None:
        self.worker = worker
        self.told: list[scheduler_pb2.WorkerEvent] = []
        self.published: list[tokens_pb2.TokenChunk] = []

    def submit(
        self,
        *items: worker_pb2.BatchItem,
        phase: worker_pb2.Phase.ValueType = worker_pb2.PHASE_PREFILL,
        deschedule: tuple[worker_pb2.Deschedule, ...] = (),
        term: int = 0,
    ) -> worker_pb2.BatchAccepted:
        batch = worker_pb2.RequestBatch(
            incarnation=self.worker.incarnation, phase=phase, items=items, deschedule=deschedule, term=term
        )
        return self.take(worker_pb2.RequestBatch.FromString(batch.SerializeToString()))

    def take(self, batch: worker_pb2.RequestBatch) -> worker_pb2.BatchAccepted:
        return self.worker.on_batch(batch)

    def command(self, command: worker_pb2.WorkerCommand) -> None:
        self.worker.on_command(command)

    def cancel(self, request_id: str, attempt_id: str = "") -> None:
        self.worker.on_cancel(Attempt(RequestKey("t", request_id), attempt_id))

    def status(self) -> scheduler_pb2.WorkerStatus:
        return self.worker.status()

    def events(self) -> list[scheduler_pb2.WorkerEvent]:
        return self.told

    def chunks(self, request_id: str) -> list[tokens_pb2.TokenChunk]:
        return [chunk for chunk in self.published if chunk.request_id == request_id]

    def answer(self, item: worker_pb2.BatchItem) -> list[int]:
        return list(range(item.request.params.max_tokens))


class OfScheduler(_Modelled):
    """The one in the tests of the scheduler. It takes this for the world around it."""

    worker: SimWorker

    def __init__(self) -> None:
        size = Size(SLOTS, SEQUENCES, CELLS, CONTEXT)
        super().__init__(SimWorker(cast("World", self), "w", 1, size, "m"))
        self.killers: dict[RequestKey, None] = {}
        self.core, self.now = self, 0.0

    def settle(self) -> None:
        self.worker.step()

    def tell(self, delivery: Callable[[], object]) -> None:
        delivery()

    def on_event(self, event: scheduler_pb2.WorkerEvent, _now: float) -> None:
        self.told.append(event)

    def publish(self, _key: RequestKey, chunk: tokens_pb2.TokenChunk) -> None:
        self.published.append(chunk)


class OfSimulator(_Modelled):
    """The one of the simulator, whose steps take a second. It takes this for its readers."""

    worker: ModelledWorker

    def __init__(self) -> None:
        self.now = 0.0
        model = WorkerModel(
            SLOTS,
            SEQUENCES,
            CELLS,
            CONTEXT,
            step_s=1.0,
            sequence_s=0.0,
            prefill_tokens_per_s=1e9,
            swap_cells_per_s=1e9,
        )
        super().__init__(ModelledWorker("w", model, output_of=lambda _key: CONTEXT, readers=self, served="m"))

    def take(self, batch: worker_pb2.RequestBatch) -> worker_pb2.BatchAccepted:
        return self.worker.take_batch(batch, self.now)

    def command(self, command: worker_pb2.WorkerCommand) -> None:
        self.worker.take_command(command, self.now)

    def settle(self) -> None:
        self.now += 1.001
        self.worker.look(self.now)

    def events(self) -> list[scheduler_pb2.WorkerEvent]:
        return self.worker.events

    def on_tokens(
        self, key: RequestKey, epoch: int, offset: int, tokens: int, _now: float, _every_s: float
    ) -> None:
        ids = range(offset, offset + tokens)
        self.published.append(
            tokens_pb2.TokenChunk(request_id=key.request_id, epoch=epoch, offset=offset, token_ids=ids)
        )

    def on_end(self, key: RequestKey, epoch: int, outcome: str) -> None:
        chunk = tokens_pb2.TokenChunk(request_id=key.request_id, epoch=epoch)
        chunk.finished.reason = generation_pb2.FinishReason.Value(f"FINISH_REASON_{outcome.upper()}")
        self.published.append(chunk)


WORKERS: dict[str, Callable[[], Told]] = {
    "llama": WithLlama,
    "null": WithNull,
    "scheduler's tests": OfScheduler,
    "simulator": OfSimulator,
}
