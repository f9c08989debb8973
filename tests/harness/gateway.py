"""A gateway process as it runs in production, clients to it, and a stand-in for scheduler and worker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import struct
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc.aio
import pytest
from harness.audit import AUDIT_KEY, lines_in
from harness.policy import SERVICE_KEY
from harness.starting import start

from inferflux.cli.stack.servers import free_port
from inferflux.common.bus import Bus, Job, JobConsumer, Message, Subscription
from inferflux.common.calls import grpc_client
from inferflux.common.contract import errors, subjects
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.v1 import (
    admin_pb2_grpc,
    cluster_pb2_grpc,
    generation_pb2,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    scheduler_pb2,
    tokens_pb2,
)

WAIT_S = 20.0
START_LIMIT_S = 60.0
CONTEXT = 512
VOCABULARY = 2048

Chunk = tokens_pb2.TokenChunk


async def until(condition: Callable[[], bool | Awaitable[bool]], *, timeout_s: float = WAIT_S) -> None:
    """Return once the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


class GatewayProcess:
    """`python -m inferflux.gateway`, with a channel to it."""

    def __init__(self, directory: Path, nats_url: str, policy_address: str, **variables: str) -> None:
        self.port, self.metrics_port, self.http_port = free_port(), free_port(), free_port()
        self.log_path = directory / f"gateway-{self.port}.log"
        self.environment = {
            "INFERFLUX_GATEWAY_LISTEN": f"127.0.0.1:{self.port}",
            "INFERFLUX_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
            "INFERFLUX_GATEWAY_HTTP_LISTEN": f"127.0.0.1:{self.http_port}",
            "INFERFLUX_NATS_URL": nats_url,
            "INFERFLUX_POLICY_ADDRESS": policy_address,
            "INFERFLUX_SERVICE_KEY": SERVICE_KEY,
            "INFERFLUX_LOG_FORMAT": "json",
            "INFERFLUX_AUDIT_DIR": str(directory / "audit"),
            "INFERFLUX_AUDIT_KEY": AUDIT_KEY,
            "INFERFLUX_EXIT_WITH_PARENT": "true",
            # Most tests need no model.
            "INFERFLUX_GATEWAY_NEEDS_MODEL": "false",
        } | variables
        self.audit_dir = directory / "audit"
        self.process: subprocess.Popen[bytes] | None = None
        self.channel = grpc_client.channel(f"127.0.0.1:{self.port}")
        self.inference = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.models = model_pb2_grpc.ModelServiceStub(self.channel)
        self.cluster = cluster_pb2_grpc.ClusterServiceStub(self.channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self.channel)

    def start(self) -> None:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("INFERFLUX_")}
        with self.log_path.open("ab") as log:
            self.process = start("inferflux.gateway", stderr=log, env=inherited | self.environment)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def terminate(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    async def ended(self) -> int:
        """The exit status, once there is one."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, WAIT_S)

    async def close(self) -> None:
        await self.channel.close()
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET on the metrics port; 0 while nothing listens."""
        return await asyncio.to_thread(self._get, f"http://127.0.0.1:{self.metrics_port}{path}")

    def _get(self, url: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    async def wait_ready(self, *, ready: bool = True) -> None:
        async def is_so() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log_path.read_text()
            status, _ = await self.get("/readyz")
            return status == (200 if ready else 503)

        await until(is_so, timeout_s=START_LIMIT_S)

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]

    def audit(self, request_id: str = "") -> list[dict[str, Any]]:
        """The audit lines, of a request if one is named."""
        return lines_in(self.audit_dir, request_id)


class StartGateway(Protocol):
    """Starts a gateway that ends with the test.

    Args:
        wait: until it is ready.
        knows: and until it knows this model: it may be ready before it has read a heartbeat, and a request
            that comes then fails where the next heartbeat is late. "": no worker is there.
    """

    async def __call__(
        self, nats_url: str, *, wait: bool = True, knows: str = "demo", **variables: str
    ) -> GatewayProcess: ...


class Client:
    """Calls a gateway with one key."""

    def __init__(self, gateway: GatewayProcess, key: str) -> None:
        self.gateway = gateway
        self.key = key

    def generate(self, request_id: str = "", *, timeout_s: float | None = WAIT_S, **fields: Any) -> Stream:
        """Start Generate on model `demo` with the prompt "hello", unless `fields` say otherwise."""
        if not {"text", "text_bytes", "token_ids", "parts"} & fields.keys():
            fields["text"] = "hello"
        request = inference_pb2.GenerateRequest(**({"model": "demo"} | fields))
        return Stream(
            self.gateway.inference.Generate(request, metadata=self._metadata(request_id), timeout=timeout_s)
        )

    async def begin(
        self, backend: Backend, request_id: str, **fields: Any
    ) -> tuple[Stream, scheduler_pb2.InferenceRequest]:
        """A Generate whose first token has come, and its job."""
        stream = self.generate(request_id, **fields)
        job = await backend.job(request_id)
        await backend.say(job, tokens(0))
        await stream.until_tokens()
        return stream, job

    def chat(self, request_id: str = "", *, timeout_s: float | None = WAIT_S, **fields: Any) -> Stream:
        """Start Chat on model `demo` with one message, unless `fields` say otherwise."""
        messages = [inference_pb2.ChatMessage(role="user", content="hello")]
        request = inference_pb2.ChatRequest(**({"model": "demo", "messages": messages} | fields))
        return Stream(
            self.gateway.inference.Chat(request, metadata=self._metadata(request_id), timeout=timeout_s)
        )

    def resume(self, request_id: str, offset: int) -> Stream:
        request = inference_pb2.ResumeRequest(request_id=request_id, offset=offset)
        return Stream(self.gateway.inference.Resume(request, metadata=self._metadata(""), timeout=WAIT_S))

    async def cancel(self, request_id: str) -> None:
        request = inference_pb2.CancelRequest(request_id=request_id)
        await self.gateway.inference.Cancel(request, metadata=self._metadata(""), timeout=WAIT_S)

    async def model_names(self) -> list[str]:
        """The models that are served now."""
        answer = await self.gateway.models.ListModels(
            model_pb2.ListModelsRequest(), metadata=self._metadata(""), timeout=WAIT_S
        )
        return [model.card.name for model in answer.models if model.workers]

    async def sees(self, model: str) -> None:
        """Return once the gateway serves the model."""

        async def is_so() -> bool:
            return model in await self.model_names()

        await until(is_so)

    async def sees_constraints(self, model: str) -> None:
        """Return once the gateway knows that the model can constrain answers."""
        asked = model_pb2.GetModelRequest(name=model)

        async def is_so() -> bool:
            answer = await self.gateway.models.GetModel(asked, metadata=self._metadata(""), timeout=WAIT_S)
            return bool(answer.model.card.can_constrain)

        await until(is_so)

    def _metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        return grpc_client.outgoing(api_key=self.key, request_id=request_id)


class Stream:
    """A server stream, read chunk by chunk."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def next(self) -> Chunk:
        response = await asyncio.wait_for(self.call.read(), WAIT_S)
        if response is grpc.aio.EOF:
            raise AssertionError("the stream has ended")
        return response.chunk  # type: ignore[no-any-return]

    async def until_tokens(self) -> Chunk:
        """The first chunk with tokens."""
        while not (chunk := await self.next()).token_ids:
            pass
        return chunk

    async def rest(self) -> list[Chunk]:
        """All chunks to the end of the stream."""
        chunks: list[Chunk] = []
        while (response := await asyncio.wait_for(self.call.read(), WAIT_S)) is not grpc.aio.EOF:
            chunks.append(response.chunk)
        return chunks

    async def error(self) -> errors.InferFluxError:
        """The error the stream ends with, whatever comes before."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.rest()
        return errors.from_rpc(caught.value)

    def cancel(self) -> None:
        self.call.cancel()


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def ids_of(chunks: Sequence[Chunk]) -> list[int]:
    """All token ids, which must be without holes and repeats from the first chunk's offset on."""
    ids: list[int] = []
    start = chunks[0].offset if chunks else 0
    for chunk in chunks:
        if chunk.token_ids:
            assert chunk.offset == start + len(ids), f"offset {chunk.offset} after {start + len(ids)} tokens"
        ids.extend(chunk.token_ids)
    return ids


class Backend:
    """Stands for scheduler and worker on the bus: takes jobs, beats, and says what a test wants said.

    Tokens are numbered from 0 and their texts are "0 ", "1 ", ...
    """

    def __init__(self, bus: Bus, tokenizer: bytes, *, model: str = "demo", has_template: bool = True) -> None:
        self.bus = bus
        self.digest = hashlib.sha256(tokenizer).hexdigest()
        self.card = model_pb2.ModelCard(
            name=model,
            digest=self.digest,
            context_length=CONTEXT,
            vocabulary_size=VOCABULARY,
            has_chat_template=has_template,
        )
        self.jobs: dict[str, scheduler_pb2.InferenceRequest] = {}
        self.cancelled: list[str] = []
        # The attempts they named.
        self.cancelled_attempts: list[str] = []
        # Requests for which a cancel is answered with "found".
        self.known: set[str] = set()
        # What is answered about readers of a request; "not found" where nothing is said.
        self.reader_replies: dict[str, scheduler_pb2.ReaderReply] = {}
        self.reader_notices: list[scheduler_pb2.ReaderNotice] = []
        self.readers: Subscription | None = None
        self._cancels: Subscription | None = None
        self._tokenizer = tokenizer
        self._held: dict[str, Job] = {}
        self._consumer: JobConsumer | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, *, takes_jobs: bool = True, beats: bool = True) -> None:
        await self.bus.ensure_streams(StreamLimits())
        await self.bus.put_object(self.digest, self._tokenizer)
        self._cancels = await self.bus.serve(subjects.CANCEL_ALL, self._on_cancel)
        self.readers = await self.bus.serve(subjects.SCHEDULER_READERS, self._on_readers)
        if takes_jobs:
            self._consumer = await self.bus.consume_jobs(max_outstanding=10_000)
            self._tasks.append(asyncio.create_task(self._take_jobs(self._consumer)))
        if beats:
            self._tasks.append(asyncio.create_task(self._beat()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for served in (self.readers, self._cancels):
            if served is not None:
                await served.close()
        if self._consumer is not None:
            await self._consumer.close()

    @property
    def worker_id(self) -> str:
        """Of the worker that it plays."""
        return f"w-{self.card.name}"

    async def beat(self) -> None:
        status = scheduler_pb2.WorkerStatus(
            worker_id=self.worker_id,
            incarnation="1",
            state=scheduler_pb2.WORKER_STATE_READY,
            models=[self.card],
        )
        await self.bus.publish(subjects.worker_status(status.worker_id), status.SerializeToString())

    async def remembers_tokens(self) -> None:
        """Return once tokens said from here on are captured for replay, after a restart of NATS."""

        probe = subjects.tokens("acme", f"probe-{uuid.uuid4().hex}")

        async def is_so() -> bool:
            # A stream that is not there yet is read as empty: only what comes back was captured.
            try:
                await self.bus.publish(probe, b"")
                return bool(await self.bus.replay(probe))
            except errors.InferFluxError:
                return False

        await until(is_so)

    async def job(self, request_id: str) -> scheduler_pb2.InferenceRequest:
        """The job of a request, once it is here."""
        await until(lambda: request_id in self.jobs)
        return self.jobs[request_id]

    def headers(self, request_id: str) -> Mapping[str, str]:
        """The NATS headers of a job that is here."""
        return self._held[request_id].headers

    async def only_job(self) -> scheduler_pb2.InferenceRequest:
        await until(lambda: len(self.jobs) == 1)
        return next(iter(self.jobs.values()))

    async def say(self, job: scheduler_pb2.InferenceRequest, *chunks: Chunk) -> None:
        """Publish chunks of a request."""
        for chunk in chunks:
            chunk.request_id = job.request_id
            await self.bus.publish(subjects.tokens(job.tenant, job.request_id), chunk.SerializeToString())
        await self.bus.flush()

    async def finish(self, job: scheduler_pb2.InferenceRequest, *, n: int, offset: int = 0) -> None:
        """Publish tokens [offset, n) one by one and a good end; the job is done."""
        await self.say(job, *(tokens(i) for i in range(offset, n)), finished(n, attempt=job.attempt_id))
        await self.done(job.request_id)

    async def finish_texts(self, job: scheduler_pb2.InferenceRequest) -> None:
        """Publish a vector of two numbers for each text; the job is done."""
        chunk = finished(0)
        chunk.vectors.values.extend([struct.pack("<2f", 0.6, 0.8)] * len(job.embedding.text_tokens))
        await self.say(job, chunk)
        await self.done(job.request_id)

    async def done(self, request_id: str) -> None:
        await self._held.pop(request_id).ack()

    async def _take_jobs(self, consumer: JobConsumer) -> None:
        async for job in consumer:
            request = scheduler_pb2.InferenceRequest.FromString(job.data)
            self.jobs[request.request_id] = request
            self._held[request.request_id] = job

    async def _beat(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(0.5)

    async def _on_cancel(self, message: Message) -> None:
        notice = scheduler_pb2.CancelNotice.FromString(message.data)
        self.cancelled.append(notice.request_id)
        self.cancelled_attempts.append(notice.attempt_id)
        was_found = notice.request_id in self.known
        await message.respond(scheduler_pb2.CancelReply(was_found=was_found).SerializeToString())

    def left(self, request_id: str) -> list[scheduler_pb2.ReaderLeft]:
        """The notices that a gateway's last reader of a request has left."""
        notices = [n.left for n in self.reader_notices if n.HasField("left")]
        return [left for left in notices if left.request.request_id == request_id]

    def reports(self, request_id: str) -> list[scheduler_pb2.ReadRequest]:
        """The heartbeats' entries for a request."""
        return [read for n in self.reader_notices for read in n.now.requests if read.request_id == request_id]

    async def _on_readers(self, message: Message) -> None:
        notice = scheduler_pb2.ReaderNotice.FromString(message.data)
        self.reader_notices.append(notice)
        asked = notice.left if notice.HasField("left") else notice.joined
        reply = self.reader_replies.get(asked.request.request_id, scheduler_pb2.ReaderReply())
        await message.respond(reply.SerializeToString())


def tokens(first: int, last: int | None = None, *, epoch: int = 1) -> Chunk:
    """A chunk with the tokens [first, last], `first` alone if there is no `last`."""
    ids = list(range(first, (first if last is None else last) + 1))
    text = "".join(f"{i} " for i in ids)
    return Chunk(epoch=epoch, offset=first, token_ids=ids, text=text, sampled_unix_us=1)


def started(*, offset: int = 0, epoch: int = 1) -> Chunk:
    return Chunk(epoch=epoch, offset=offset, started=tokens_pb2.Started(worker_id="w-1"))


def queued(position: int = 0, *, epoch: int = 1) -> Chunk:
    return Chunk(epoch=epoch, queued=tokens_pb2.Queued(position=position))


def finished(
    n: int,
    *,
    epoch: int = 1,
    reason: generation_pb2.FinishReason.ValueType = generation_pb2.FINISH_REASON_STOP,
    attempt: str = "",
) -> Chunk:
    found = generation_pb2.CACHE_TIER_HOST
    usage = generation_pb2.Usage(
        prompt_tokens=5, cached_prompt_tokens=2, cached_prompt_tier=found, completion_tokens=n
    )
    event = tokens_pb2.Finished(reason=reason, usage=usage)
    return Chunk(epoch=epoch, offset=n, finished=event, attempt_id=attempt)


def failed(n: int, error: errors.InferFluxError, *, epoch: int = 1) -> Chunk:
    return Chunk(epoch=epoch, offset=n, failed=errors.to_failed(error))
