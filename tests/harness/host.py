"""A worker process with several models, and what it says as their host."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import psutil
from harness.children import ENGINE
from harness.worker import WAIT_S, WorkerProcess, read_to_end

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import subjects
from inferflux.common.contract.messages.hosts import worker_ids
from inferflux.v1 import host_pb2, model_pb2, scheduler_pb2, tokens_pb2, worker_pb2

_MOST_MODELS = 4


class HostProcess(WorkerProcess):
    """`python -m inferflux.worker` without a model of its own, unless `variables` name one.

    Attributes:
        host: what it reported last.
        statuses: the latest heartbeats, by worker id.
        deaths: what its witness said, (worker id, incarnation).
    """

    def __init__(self, directory: Path, nats_url: str, bus: Bus, worker_id: str, **variables: str) -> None:
        super().__init__(
            directory, nats_url, bus, worker_id, **({"INFERFLUX_WORKER_MODEL_PATH": ""} | variables)
        )
        self.host: host_pb2.HostStatus | None = None
        self.statuses: dict[str, scheduler_pb2.WorkerStatus] = {}
        self.deaths: list[tuple[str, str]] = []
        self._ids = worker_ids(worker_id)[:_MOST_MODELS]

    async def start(self) -> None:
        for worker_id in self._ids[1:]:
            await self.bus.serve(subjects.worker_status(worker_id), self._on_status)
        await self.bus.serve(subjects.host_status(self.worker_id), self._on_host)
        await super().start()

    async def start_ready(self) -> None:
        """Return when it has reported, with every pinned model ready."""
        await self.start()
        await self.until(
            lambda: (
                self.host is not None
                and all(m.state == model_pb2.MODEL_STATE_READY for m in self.host.models if m.is_pinned)
            )
        )

    async def tell(self, *, term: int = 0, **command: Any) -> host_pb2.HostReply:
        """What it answers to a command, such as `load=LoadHostedModel(...)`."""
        message = host_pb2.HostCommand(term=term, **command)
        data = await self.bus.request(
            subjects.host_command(self.worker_id), message.SerializeToString(), timeout_s=WAIT_S
        )
        return host_pb2.HostReply.FromString(data)

    async def register(self, path: Path | str, name: str = "", **fields: Any) -> host_pb2.HostReply:
        return await self.tell(register=host_pb2.RegisterModelFile(path=str(path), name=name, **fields))

    async def load(self, name: str) -> host_pb2.HostReply:
        return await self.tell(load=host_pb2.LoadHostedModel(name=name))

    async def unload(self, name: str) -> host_pb2.HostReply:
        return await self.tell(unload=host_pb2.UnloadHostedModel(name=name))

    async def forget(self, name: str) -> host_pb2.HostReply:
        return await self.tell(forget=host_pb2.ForgetModelFile(name=name))

    @property
    def states(self) -> dict[str, model_pb2.ModelState.ValueType]:
        """Of its models by name, as it reported last."""
        return {} if self.host is None else {m.card.name: m.state for m in self.host.models}

    def model(self, name: str) -> host_pb2.HostedModel:
        """What it reported last of a model."""
        assert self.host is not None
        return next(m for m in self.host.models if m.card.name == name)

    async def until_state(self, name: str, state: model_pb2.ModelState.ValueType) -> host_pb2.HostedModel:
        await self.until(lambda: self.states.get(name) == state)
        return self.model(name)

    async def until_ready(self, name: str) -> str:
        """Return when a model takes requests; its worker id."""
        worker_id = (await self.until_state(name, model_pb2.MODEL_STATE_READY)).worker_id
        ready = scheduler_pb2.WORKER_STATE_READY
        await self.until(
            lambda: (
                worker_id in self.statuses
                and self.statuses[worker_id].state == ready
                and self.statuses[worker_id].models[0].name == name
            )
        )
        return worker_id

    async def send_to(self, name: str, *items: worker_pb2.BatchItem) -> None:
        """Have a loaded model take requests."""
        worker_id = self.model(name).worker_id
        batch = worker_pb2.RequestBatch(
            batch_id="b",
            incarnation=self.statuses[worker_id].incarnation,
            phase=worker_pb2.PHASE_PREFILL,
            items=items,
        )
        data = await self.bus.request(
            subjects.worker_batch(worker_id), batch.SerializeToString(), timeout_s=WAIT_S
        )
        answer = worker_pb2.BatchAccepted.FromString(data)
        assert not answer.refused, answer

    async def ask(self, name: str, item: worker_pb2.BatchItem) -> list[tokens_pb2.TokenChunk]:
        """A request's chunks up to the terminal one."""
        stream = await self.read(item.request.request_id)
        try:
            await self.send_to(name, item)
            return await read_to_end(stream)
        finally:
            stream.close()

    def engines(self, *, but: Collection[int] = ()) -> set[int]:
        """The processes of its engines."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return {child.pid for child in children if ENGINE in child.cmdline()} - set(but)

    def engine_of(self, path: str) -> int:
        """The process that has the file at `path` in its memory."""
        (pid,) = (pid for pid in self.engines() if path in Path(f"/proc/{pid}/maps").read_text())
        return pid

    async def _on_status(self, message: Message) -> None:
        status = scheduler_pb2.WorkerStatus.FromString(message.data)
        self.statuses[status.worker_id] = status
        self._news.set()

    async def _on_host(self, message: Message) -> None:
        self.host = host_pb2.HostStatus.FromString(message.data)
        self._news.set()

    async def _on_event(self, message: Message) -> None:
        event = scheduler_pb2.WorkerEvent.FromString(message.data)
        if event.worker_id in self._ids:
            self.events.append(event)
            if event.HasField("worker_died"):
                self.deaths.append((event.worker_id, event.incarnation))
            self._news.set()
