"""Whatever is published where a gateway listens, it goes on serving."""

from __future__ import annotations

from random import Random

from google.protobuf.message import Message
from harness.gateway import Backend, Client, StartGateway
from harness.odd_messages import huge_messages, odd_messages, resident_bytes
from harness.servers import ServerProcess

from inferflux.common.contract import subjects
from inferflux.v1 import scheduler_pb2, tokens_pb2

_PER_SUBJECT = 200
_HUGE = 1 << 20
_MOST_GROWTH = 150 << 20


def usual_messages() -> list[tuple[str, Message]]:
    status = scheduler_pb2.WorkerStatus(
        worker_id="w9", incarnation="i9", state=scheduler_pb2.WORKER_STATE_READY, slots=2
    )
    status.models.add(name="other", digest="0" * 64, context_length=512, vocabulary_size=100)
    chunk = tokens_pb2.TokenChunk(request_id="held", epoch=1, token_ids=[0], text="0 ")
    chunk.logprobs.add().top.add(token_id=1)
    end = tokens_pb2.TokenChunk(request_id="held", epoch=1, offset=1)
    end.finished.usage.completion_tokens = 1
    return [
        (subjects.worker_status("w9"), status),
        (subjects.tokens("acme", "held"), chunk),
        (subjects.tokens("acme", "held"), end),
    ]


async def test_a_gateway_goes_on_whatever_is_published_where_it_listens(
    private_nats: ServerProcess, private_backend: Backend, start_gateway: StartGateway, key: str
) -> None:
    rng = Random(12)
    gateway = await start_gateway(private_nats.url)
    client = Client(gateway, key)
    assert gateway.process is not None
    held = client.generate("held")
    await private_backend.job("held")
    before = resident_bytes(gateway.process.pid)
    for subject, usual in usual_messages():
        for payload in [*odd_messages(rng, usual, _PER_SUBJECT), *huge_messages(usual, _HUGE)]:
            await private_backend.bus.publish(subject, payload)
        await private_backend.bus.flush()
    held.cancel()
    stream = client.generate("after")
    await private_backend.finish(await private_backend.job("after"), n=3)
    assert [i for chunk in await stream.rest() for i in chunk.token_ids] == [0, 1, 2]
    status, metrics = await gateway.get("/metrics")
    assert status == 200
    assert 'inferflux_gateway_bad_messages_total{kind="heartbeat"}' in metrics
    assert "unexpected_errors_total{" not in metrics, "something raised that nothing was prepared for"
    assert resident_bytes(gateway.process.pid) - before < _MOST_GROWTH
