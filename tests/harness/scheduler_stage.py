"""A scheduler process, a nats-server, and a test that plays gateway and workers."""

from __future__ import annotations

import asyncio
import http.client
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.scripted_worker import MODEL, ScriptedWorker
from harness.servers import ServerProcess
from harness.starting import start

from inferflux.cli.stack.servers import free_port
from inferflux.common.bus import Bus
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InferFluxError
from inferflux.scheduler.core.types.replayed import ReplayedTokens, assemble
from inferflux.v1 import generation_pb2, scheduler_pb2, tokens_pb2


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


@dataclass
class Standby:
    """A scheduler process that has a name and answers probes; whether it leads is for the lease to say."""

    name: str
    process: subprocess.Popen[bytes]
    port: int

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of /readyz or /metrics; 0 while it does not answer."""
        return await asyncio.to_thread(_get, self.port, path)

    async def until_ready(self, detail: str = "", timeout_s: float = 15.0) -> None:
        """Return once it is ready, and says `detail`."""
        async with asyncio.timeout(timeout_s):
            while True:
                status, body = await self.get("/readyz")
                if status == 200 and detail in body:
                    return
                assert self.process.poll() is None, "it has ended"
                await asyncio.sleep(0.02)

    async def metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        return next(float(line.split()[1]) for line in text.splitlines() if line.split()[0] == name)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(5)


@dataclass
class Stage:
    """NATS, one scheduler process, and a connection that plays gateway and workers.

    Attributes:
        tenant: whose requests it sends, reads and cancels, unless another one is named.
    """

    nats: ServerProcess
    bus: Bus
    env: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    workers: list[ScriptedWorker] = field(default_factory=list)
    standbys: dict[str, Standby] = field(default_factory=dict)
    tenant: str = "acme"

    async def start_scheduler(self) -> None:
        self.process = start("inferflux.scheduler", env=self.env)
        await self.status(lambda _status: True)

    async def add_scheduler(self, name: str, **env: str) -> Standby:
        """One more scheduler process, ready on return: to lead, or to stand by."""
        port = free_port()
        own = {"INFERFLUX_SCHEDULER_ID": name, "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{port}"}
        process = start("inferflux.scheduler", env=self.env | own | env)
        standby = self.standbys[name] = Standby(name, process, port)
        await standby.until_ready()
        return standby

    def kill_scheduler(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(5)

    async def add_worker(self, worker_id: str, *, slots: int = 2, model: str = MODEL) -> ScriptedWorker:
        worker = ScriptedWorker(self.bus, worker_id, slots=slots, model=model)
        await worker.start()
        self.workers.append(worker)
        return worker

    async def dismiss_workers(self) -> None:
        """Have its workers die, and wait until the scheduler knows of none, and has nothing to do."""
        for worker in self.workers:
            await worker.vanish()
            death = scheduler_pb2.WorkerEvent()
            death.worker_died.SetInParent()
            await worker.tell(death)
        self.workers.clear()
        await self.is_quiet(workers=0)

    async def submit(
        self,
        request_id: str,
        *,
        tenant: str = "",
        priority: int = 0,
        max_tokens: int = 8,
        model: str = MODEL,
        deadline_in_s: float = 0.0,
        clock_ahead_s: float = 0.0,
        attempt: str = "",
        window_s: int = 0,
        prompt: Sequence[int] = (1, 2, 3),
        answer_format: generation_pb2.AnswerFormat | None = None,
        image_id: str = "",
    ) -> None:
        now_ms = round((time.time() + clock_ahead_s) * 1000)
        request = scheduler_pb2.InferenceRequest(
            request_id=request_id,
            tenant=tenant or self.tenant,
            model=model,
            prompt_token_ids=prompt,
            priority=priority,
            enqueued_unix_ms=now_ms,
            deadline_unix_ms=now_ms + round(deadline_in_s * 1000) if deadline_in_s else 0,
            epoch=1,
            attempt_id=attempt,
            resume_window_s=window_s,
            answer_format=answer_format,
        )
        request.params.max_tokens = max_tokens
        if image_id:
            request.images.add(id=image_id)
        await self.enqueue(request_id, model, request.SerializeToString())

    async def enqueue(self, message_id: str, model: str, payload: bytes) -> None:
        assert await self.bus.enqueue(subjects.jobs(model), payload, msg_id=f"{self.tenant}.{message_id}")

    async def cancel(self, request_id: str) -> bool:
        notice = scheduler_pb2.CancelNotice(tenant=self.tenant, request_id=request_id)
        subject = subjects.cancel(self.tenant, request_id)
        data = await self.bus.request(subject, notice.SerializeToString(), timeout_s=2)
        return scheduler_pb2.CancelReply.FromString(data).was_found

    async def chunks(self, request_id: str) -> list[tokens_pb2.TokenChunk]:
        payloads = await self.bus.replay(subjects.tokens(self.tenant, request_id))
        return [tokens_pb2.TokenChunk.FromString(payload) for payload in payloads]

    async def read(self, request_id: str, timeout_s: float = 15.0) -> ReplayedTokens:
        """What a reader holds when the stream has ended."""
        async with asyncio.timeout(timeout_s):
            while not (emitted := assemble(await self.chunks(request_id))).outcome:
                await asyncio.sleep(0.05)
        return emitted

    async def status(self, is_wanted: object, timeout_s: float = 15.0) -> scheduler_pb2.SchedulerStatus:
        """Ask the scheduler until its answer is as wanted."""
        assert callable(is_wanted)
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    data = await self.bus.request(subjects.SCHEDULER_STATUS, b"", timeout_s=1)
                    status = scheduler_pb2.SchedulerStatus.FromString(data)
                    if is_wanted(status):
                        return status
                except InferFluxError:
                    pass
                await asyncio.sleep(0.05)

    async def is_quiet(self, workers: int) -> scheduler_pb2.SchedulerStatus:
        """Wait until nothing waits or runs, and every slot of that many workers is free."""
        return await self.status(
            lambda s: (
                s.queued == s.running == 0
                and len(s.workers) == workers
                and all(slot.state == "free" for view in s.workers for slot in view.slots)
            )
        )
