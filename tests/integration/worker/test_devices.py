"""What a worker's model runs on: this machine's CPU, and ggml's RPC servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from harness.gguf_files import MIXTURE_EXPERTS, tiny_mixture
from harness.rpc_servers import RpcServer, endpoints, rpc_servers
from harness.servers import ServerProcess
from harness.worker import WAIT_S, WorkerProcess, batch_item, read_to_end, token_ids

from inferflux.common.bus import Bus
from inferflux.common.contract.requests.stream_limits import StreamLimits
from inferflux.v1 import device_pb2, tokens_pb2
from inferflux.worker.engine.llama.rpc_servers import RpcServerError, check_server

pytestmark = pytest.mark.long

Start = Callable[..., Awaitable[WorkerProcess]]
_LAYERS = 6
"""The demo model's, the input's left out, the output layer's among them."""


@pytest.fixture
async def bus(private_nats: ServerProcess) -> AsyncIterator[Bus]:
    connection = await Bus.connect(private_nats.url, name="test")
    await connection.ensure_streams(StreamLimits())
    yield connection
    await connection.close()


@pytest.fixture
async def start(private_nats: ServerProcess, bus: Bus, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a worker without a prefill context, whose arithmetic is another."""
    made: list[WorkerProcess] = []

    async def start(worker_id: str, **variables: str) -> WorkerProcess:
        worker = WorkerProcess(
            tmp_path, private_nats.url, bus, worker_id, INFERFLUX_WORKER_PREFILL_CELLS="0", **variables
        )
        made.append(worker)
        await worker.start_ready()
        return worker

    yield start
    for worker in made:
        worker.kill()


async def answer(worker: WorkerProcess, request_id: str) -> list[int]:
    """A greedy one."""
    async with open_answer(worker, request_id, max_tokens=24) as chunks:
        return token_ids(await chunks)


@asynccontextmanager
async def open_answer(
    worker: WorkerProcess, request_id: str, *, max_tokens: int
) -> AsyncIterator[Awaitable[list[tokens_pb2.TokenChunk]]]:
    stream = await worker.read(request_id)
    async with asyncio.timeout(WAIT_S):
        while not (await worker.submit(batch_item(request_id, max_tokens=max_tokens))).accepted_request_ids:
            await asyncio.sleep(0.05)  # its engine is started again
    reading = asyncio.create_task(read_to_end(stream))
    try:
        yield reading
    finally:
        reading.cancel()
        stream.close()


def context_of(worker: WorkerProcess) -> device_pb2.DeviceContext:
    assert worker.status is not None
    return worker.status.device_context


async def test_a_worker_tells_what_its_model_runs_on_and_warns_once_of_what_is_not_there(
    start: Start,
) -> None:
    worker = await start(
        "cpu",
        INFERFLUX_WORKER_GPU_LAYERS="3",
        INFERFLUX_WORKER_TENSOR_SPLIT="3,1",
        INFERFLUX_WORKER_MAIN_GPU="1",
        INFERFLUX_WORKER_TENSOR_OVERRIDES=r"blk\.0\.ffn=CPU,blk\.1\.=CUDA0",
        INFERFLUX_WORKER_EXPERTS_ON_CPU="-1",
    )
    context = context_of(worker)
    (cpu,) = context.devices
    assert (cpu.name, cpu.backend, cpu.kind) == ("CPU", "CPU", device_pb2.DEVICE_KIND_CPU)
    assert 0 < cpu.memory_free_bytes < cpu.memory_total_bytes
    assert (context.layers, cpu.layers, context.gpu_layers) == (_LAYERS, _LAYERS, 0)
    assert cpu.weights_bytes > 3 << 20
    assert cpu.kv_bytes > 0
    assert cpu.compute_bytes > 0
    assert (context.flash_attention, context.flash_attention_reason) == (True, "")
    assert [warning.split(",")[0] for warning in context.warnings] == [
        "INFERFLUX_WORKER_GPU_LAYERS is 3",
        "INFERFLUX_WORKER_TENSOR_SPLIT is set",
        "INFERFLUX_WORKER_MAIN_GPU is 1",
        "INFERFLUX_WORKER_TENSOR_OVERRIDES names the device CUDA0",
    ]
    os.kill(worker.engine_pid(), signal.SIGKILL)
    await worker.until(lambda: any(event.HasField("engine_died") for event in worker.events))
    assert len(await answer(worker, "after")) == 24
    assert worker.log_path.read_text().count("not on the devices that were asked for") == 4


async def test_layers_on_two_rpc_servers_give_the_same_answer(start: Start, tmp_path: Path) -> None:
    alone = await start("alone")
    expected = await answer(alone, "alone")
    alone.kill()
    with rpc_servers(tmp_path) as servers:
        worker = await start(
            "split",
            INFERFLUX_WORKER_RPC_SERVERS=endpoints(servers),
            INFERFLUX_WORKER_TENSOR_SPLIT="1,2",
            INFERFLUX_WORKER_TENSOR_OVERRIDES=r"blk\.0\.ffn_up=CPU",
        )
        context = context_of(worker)
        by_name = {device.name: device for device in context.devices}
        first, second = by_name["RPC0"], by_name["RPC1"]
        assert [first.endpoint, second.endpoint] == [server.endpoint for server in servers]
        assert {first.backend, second.backend} == {"RPC"}
        assert (context.layers, context.gpu_layers) == (_LAYERS, _LAYERS)
        assert (first.layers, second.layers) == (2, 4)
        for device in (first, second):
            assert device.weights_bytes > 0
            assert device.kv_bytes > 0
            assert device.memory_total_bytes > 0
        assert by_name["CPU"].kv_bytes == 0
        # Of the input's embeddings, and the tensor that was named.
        assert 0 < by_name["CPU"].weights_bytes < first.weights_bytes
        assert context.flash_attention
        assert not context.warnings
        assert await answer(worker, "split") == expected


async def test_a_worker_tells_on_its_card_which_device_has_the_experts_of_which_layers(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "mixture.gguf"
    path.write_bytes(tiny_mixture().data())
    with rpc_servers(tmp_path) as servers:
        worker = await start(
            "mixture",
            INFERFLUX_WORKER_MODEL_PATH=str(path),
            INFERFLUX_WORKER_RPC_SERVERS=endpoints(servers),
            INFERFLUX_WORKER_EXPERT_RANKS="RPC1,RPC0",
        )
        assert worker.status is not None
        (card,) = worker.status.models
        assert [(rank.device, rank.endpoint) for rank in card.expert_ranks] == [
            ("RPC1", servers[1].endpoint),
            ("RPC0", servers[0].endpoint),
        ]
        assert [(rank.first_layer, rank.last_layer) for rank in card.expert_ranks] == [(0, 0), (1, 1)]
        assert card.n_experts == MIXTURE_EXPERTS


async def test_a_dead_rpc_server_is_an_engine_death_that_ends_when_the_server_is_back(
    start: Start, tmp_path: Path
) -> None:
    with rpc_servers(tmp_path) as servers:
        worker = await start("split", INFERFLUX_WORKER_RPC_SERVERS=endpoints(servers))
        expected = await answer(worker, "before")
        async with open_answer(worker, "dies", max_tokens=1900):
            seen = len(worker.events)
            servers[1].kill()
            await worker.until(lambda: any(e.HasField("engine_died") for e in worker.events[seen:]))
        died = next(e.engine_died for e in worker.events[seen:] if e.HasField("engine_died"))
        assert [lost.request_id for lost in died.residents] == ["dies"]
        away = f"the RPC server {servers[1].endpoint} cannot be reached"
        await worker.until(lambda: any(away in e.engine_died.message for e in worker.events[seen:]))
        assert worker.process is not None
        assert worker.process.poll() is None
        servers[1].start()
        assert await answer(worker, "after") == expected


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Something that is no usable RPC server: what it answers to a greeting; None: nothing at all."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    if answer is None:
                        ended.wait()
                    else:
                        connection.recv(1024)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


def greeting(major: int) -> bytes:
    return (28).to_bytes(8, "little") + bytes([major, 1, 2]) + bytes(25)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "does not answer within 0.2 s: it serves one client at a time"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is no RPC server"),
        (b"", "is no RPC server"),
        (greeting(6), "speaks protocol 6.1.2, this llama.cpp 7"),
    ],
)
def test_a_server_that_cannot_be_used_is_named_with_the_cause(answer: bytes | None, said: str) -> None:
    with listening(answer) as endpoint, pytest.raises(RpcServerError, match=said) as caught:
        check_server(endpoint, limit_s=0.2)
    assert endpoint in str(caught.value)


def test_a_server_with_this_protocol_can_be_used() -> None:
    with listening(greeting(7)) as endpoint:
        check_server(endpoint, limit_s=30)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"INFERFLUX_WORKER_TENSOR_SPLIT": "1,1,1"}, "INFERFLUX_WORKER_TENSOR_SPLIT has 3 parts"),
        ({"INFERFLUX_WORKER_MAIN_GPU": "1"}, "INFERFLUX_WORKER_MAIN_GPU is 1"),
        ({"INFERFLUX_WORKER_TENSOR_OVERRIDES": "blk=CUDA0"}, "names the device CUDA0"),
    ],
)
async def test_devices_that_are_not_there_fail_the_load_by_the_settings_name(
    private_nats: ServerProcess, bus: Bus, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    with rpc_servers(tmp_path, 1) as servers:
        asked = {"INFERFLUX_WORKER_RPC_SERVERS": endpoints(servers)} | variables
        worker = WorkerProcess(tmp_path, private_nats.url, bus, "refused", **asked)
        await worker.start()
        assert await worker.wait() == 2
    assert said in worker.log_path.read_text()


async def test_a_server_that_is_away_fails_the_first_load_with_the_cause(
    private_nats: ServerProcess, bus: Bus, tmp_path: Path
) -> None:
    server = RpcServer(tmp_path / "never.log")
    worker = WorkerProcess(
        tmp_path, private_nats.url, bus, "away", INFERFLUX_WORKER_RPC_SERVERS=server.endpoint
    )
    await worker.start()
    assert await worker.wait() == 2
    assert f"the RPC server {server.endpoint} cannot be reached" in worker.log_path.read_text()
