"""A worker process as it runs in production, and what it publishes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.children import ENGINE, child_of
from harness.starting import start

from inferflux.common.bus import Bus, Message, TokenSubscription
from inferflux.common.contract import subjects
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2, worker_pb2

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "inferflux-demo.gguf"
WAIT_S = 30.0


class WorkerProcess:
    """`python -m inferflux.worker` on one bus, with everything it publishes about itself."""

    def __init__(self, directory: Path, nats_url: str, bus: Bus, worker_id: str, **variables: str) -> None:
        self.worker_id = worker_id
        self.bus = bus
        self.log_path = directory / f"{worker_id}.log"
        self.status: scheduler_pb2.WorkerStatus | None = None
        self.events: list[scheduler_pb2.WorkerEvent] = []
        # The latest run of each request that was resumed.
        self.runs: Counter[str] = Counter()
        self._news = asyncio.Event()
        self._environment = {
            "INFERFLUX_NATS_URL": nats_url,
            "INFERFLUX_WORKER_ID": worker_id,
            "INFERFLUX_WORKER_MODEL_PATH": str(DEMO_MODEL),
            "INFERFLUX_WORKER_SLOTS": "4",
            "INFERFLUX_EXIT_WITH_PARENT": "true",
        } | variables
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        await self.bus.serve(subjects.worker_status(self.worker_id), self._on_status)
        await self.bus.serve(subjects.SCHEDULER_EVENTS, self._on_event)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("INFERFLUX_")}
        with self.log_path.open("ab") as log:
            env = inherited | self._environment
            self.process = start("inferflux.worker", stdout=log, stderr=log, env=env)

    async def start_ready(self) -> None:
        await self.start()
        await self.until_own_ready()

    async def until_own_ready(self) -> None:
        """Return once a heartbeat says that it is."""
        await self.until(
            lambda: self.status is not None and self.status.state == scheduler_pb2.WORKER_STATE_READY
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds, checked after each message of the worker."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            self._news.clear()
            left = deadline - time.monotonic()
            assert left > 0, f"waited in vain; the worker's log:\n{self.log_path.read_text()}"
            try:
                await asyncio.wait_for(self._news.wait(), min(left, 1.0))
            except TimeoutError:
                continue

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait(self) -> int:
        assert self.process is not None
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), WAIT_S)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def submit(
        self,
        *items: worker_pb2.BatchItem,
        incarnation: str = "",
        phase: worker_pb2.Phase.ValueType = worker_pb2.PHASE_PREFILL,
        preempt: Sequence[str] = (),
        term: int = 0,
        created_unix_ms: int = 0,
    ) -> worker_pb2.BatchAccepted:
        """Send one batch; `preempt` names requests of epoch 1 to be descheduled."""
        assert self.status is not None
        batch = worker_pb2.RequestBatch(
            batch_id="b",
            incarnation=incarnation or self.status.incarnation,
            phase=phase,
            items=items,
            deschedule=[
                worker_pb2.Deschedule(tenant="t", request_id=name, epoch=1, run=self.runs[name])
                for name in preempt
            ],
            term=term,
            created_unix_ms=created_unix_ms,
        )
        answer = await self.bus.request(
            subjects.worker_batch(self.worker_id), batch.SerializeToString(), timeout_s=WAIT_S
        )
        return worker_pb2.BatchAccepted.FromString(answer)

    async def preempt(self, *request_ids: str) -> None:
        """Deschedule requests, and wait until they are descheduled or have finished."""
        seen = len(self.events)
        await self.submit(preempt=request_ids)
        await self.until(lambda: set(request_ids) <= {_subject_of(e) for e in self.events[seen:]})

    async def resume(self, *items: worker_pb2.BatchItem, term: int = 0) -> worker_pb2.BatchAccepted:
        for item in items:
            self.runs[item.request.request_id] += 1
            item.run = self.runs[item.request.request_id]
        return await self.submit(*items, phase=worker_pb2.PHASE_DECODE, term=term)

    async def command(self, command: worker_pb2.WorkerCommand) -> None:
        await self.bus.publish(subjects.worker_command(self.worker_id), command.SerializeToString())
        await self.bus.flush()

    def yields(self, request_id: str) -> list[tuple[int, int]]:
        """(reason, residence) of every yield of a request so far."""
        found = [e.request_yielded for e in self.events if e.HasField("request_yielded")]
        return [(y.reason, y.residence) for y in found if y.request_id == request_id]

    def residence(self, request_id: str) -> int | None:
        """Where the latest heartbeat says a request is; None if it is not resident."""
        assert self.status is not None
        found = [r.residence for r in self.status.residents if r.request_id == request_id]
        return found[0] if found else None

    async def read(self, request_id: str) -> TokenSubscription:
        """Its token stream, subscribed to for certain."""
        stream = await self.bus.open_stream(subjects.tokens("t", request_id))
        await self.bus.flush()
        return stream

    def engine_pid(self) -> int:
        """The child process that is the engine."""
        assert self.process is not None
        engine = child_of(self.process.pid, ENGINE)
        assert engine is not None, "the worker has no engine"
        return engine

    async def _on_status(self, message: Message) -> None:
        self.status = scheduler_pb2.WorkerStatus.FromString(message.data)
        self._news.set()

    async def _on_event(self, message: Message) -> None:
        event = scheduler_pb2.WorkerEvent.FromString(message.data)
        if event.worker_id == self.worker_id:
            self.events.append(event)
            self._news.set()


def batch_item(
    request_id: str,
    *,
    model: str = "inferflux-demo",
    slot: int = 0,
    epoch: int = 1,
    token_budget: int = 0,
    urgency_key: float = 0.0,
    prompt: Sequence[int] = (10, 20, 30, 40),
    generated: Sequence[int] = (),
    max_tokens: int = 24,
    deadline_unix_ms: int = 0,
    stop: Sequence[str] = (),
    **sampling: Any,
) -> worker_pb2.BatchItem:
    """A greedy request that goes on past the model's own end, unless `sampling` says otherwise."""
    params = generation_pb2.GenerationParams(
        max_tokens=max_tokens,
        ignore_eos=True,
        stop=stop,
        sampling=generation_pb2.SamplingParams(
            **{
                "temperature": 0.0,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "repeat_penalty": 1.0,
                "frequency_penalty": 0.0,
                "presence_penalty": 0.0,
                "penalty_last_n": 64,
                "seed": 7,
            }
            | sampling
        ),
    )
    request = scheduler_pb2.InferenceRequest(
        request_id=request_id,
        tenant="t",
        model=model,
        epoch=epoch,
        prompt_token_ids=prompt,
        generated_token_ids=generated,
        params=params,
        enqueued_unix_ms=time.time_ns() // 1_000_000,
        deadline_unix_ms=deadline_unix_ms,
    )
    return worker_pb2.BatchItem(
        request=request, slot=slot, token_budget=token_budget, urgency_key=urgency_key
    )


def resume_item(
    request_id: str, *, slot: int = 0, epoch: int = 1, token_budget: int = 0, urgency_key: float = 0.0
) -> worker_pb2.BatchItem:
    """What resumes a parked or swapped request."""
    request = scheduler_pb2.InferenceRequest(
        request_id=request_id, tenant="t", model="inferflux-demo", epoch=epoch
    )
    return worker_pb2.BatchItem(
        request=request, slot=slot, token_budget=token_budget, urgency_key=urgency_key
    )


def _subject_of(event: scheduler_pb2.WorkerEvent) -> str:
    """The request of an event, if it finished or was descheduled."""
    return event.request_finished.request_id or event.request_yielded.request_id


async def read_to_end(stream: TokenSubscription) -> list[tokens_pb2.TokenChunk]:
    """Every chunk up to the terminal one."""
    chunks: list[tokens_pb2.TokenChunk] = []
    while not chunks or chunks[-1].WhichOneof("event") not in ("finished", "failed"):
        chunks.append(tokens_pb2.TokenChunk.FromString(await stream.next(WAIT_S)))
    return chunks


def token_ids(chunks: list[tokens_pb2.TokenChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]
