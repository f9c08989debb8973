"""What nats-server lets each user do: all that is not its own is refused, for every user and subject."""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import nats.errors
import pytest
from harness.nats_permissions import GuardedNats

from inferflux.cli.stack.servers import LOOPBACK, free_port
from inferflux.client import token_reader
from inferflux.client.token_reader import TokenReader
from inferflux.common.bus import Bus, Message, StreamLimits
from inferflux.common.contract import subjects
from inferflux.common.contract.errors import Internal, PermissionDenied, Unauthenticated, Unavailable
from inferflux.common.contract.subjects import (
    IMAGES_STREAM,
    JOBS_STREAM,
    KV_STREAM,
    SCHEDULERS_STREAM,
    STREAMS,
    TOKENIZERS_STREAM,
    TOKENS_STREAM,
)
from inferflux.common.servers import nats_users
from inferflux.v1 import tokens_pb2

BOUND = [
    nats_users.gateway(),
    nats_users.scheduler(),
    nats_users.worker("worker-0"),
    nats_users.observer("acme"),
]
USERS = [*BOUND, nats_users.worker("worker-1"), nats_users.observer("zeta"), nats_users.operator()]
G, S, W, O = (user.name for user in BOUND)  # noqa: E741
NONE: set[str] = set()

# Subject -> who may publish to it, who may read it; all others are refused.
OURS: Mapping[str, tuple[set[str], set[str]]] = {
    subjects.jobs("demo"): ({G}, NONE),
    subjects.JOBS_PROBE: ({G, S}, NONE),
    subjects.JOBS_ALL: (NONE, NONE),
    subjects.cancel("acme", "r1"): ({G, S}, {S, W}),
    subjects.CANCEL_ALL: (NONE, {S, W}),
    subjects.worker_batch("worker-0"): ({S}, {W}),
    subjects.worker_probe("worker-0"): ({S}, {W}),
    subjects.worker_command("worker-0"): ({S}, {W}),
    subjects.worker_batch("worker-1"): ({S}, NONE),
    subjects.worker_probe("worker-1"): ({S}, NONE),
    subjects.worker_command("worker-1"): ({S}, NONE),
    subjects.worker_kv("worker-0"): ({W}, {W}),
    subjects.worker_kv("worker-1"): ({W}, NONE),
    subjects.worker_kv("worker-0--1"): ({W}, {W}),
    subjects.worker_kv("*"): (NONE, NONE),
    subjects.worker_batch("*"): (NONE, NONE),
    subjects.worker_batch("worker-0--1"): ({S}, {W}),
    subjects.worker_status("worker-0--1"): ({W}, {G, S}),
    subjects.host_status("worker-0"): ({W}, {G, S}),
    subjects.host_status("worker-1"): (NONE, {G, S}),
    subjects.HOST_STATUS_ALL: (NONE, {G, S}),
    subjects.host_command("worker-0"): ({S}, {W}),
    subjects.host_command("worker-1"): ({S}, NONE),
    subjects.worker_status("worker-0"): ({W}, {G, S}),
    subjects.worker_status("worker-1"): (NONE, {G, S}),
    subjects.WORKER_STATUS_ALL: (NONE, {G, S}),
    subjects.ANY_STREAM_DELETED: (NONE, {G, S, W}),
    subjects.TOKENS_LED: (NONE, {G, S, W}),
    subjects.wanted("acme", "r1"): ({G}, {W}),
    subjects.WANTED_ALL: (NONE, {W}),
    subjects.SCHEDULER_EVENTS: ({W}, {S}),
    subjects.SCHEDULER_READERS: ({G}, {S}),
    subjects.SCHEDULER_STATUS: ({G}, {S}),
    subjects.SCHEDULER_ADMIN: ({G}, {S}),
    subjects.SCHEDULER_LEADER: ({S}, {W}),
    subjects.SCHEDULER_ALIVE: ({S}, {S}),
    subjects.SCHEDULER_SERVED: ({S}, {S}),
    subjects.tokens("acme", "r1"): ({G, S, W}, {G, O}),
    subjects.tokens("acme", ">"): (NONE, {G, O}),
    subjects.tokens("zeta", "r1"): ({G, S, W}, {G}),
    subjects.TOKENS_ALL: (NONE, {G}),
    f"{subjects.ROOT}.>": (NONE, NONE),
    ">": (NONE, NONE),
    "_INBOX.x.1": (NONE, NONE),
    **{f"_INBOX_{name.name}.x.1": (NONE, {name.name}) for name in USERS},
    "$KV.inferflux-schedulers.lease.all": ({S}, NONE),
    "$KV.inferflux-schedulers.probe": ({G, S}, NONE),
    "$KV.another.key": (NONE, NONE),
    "$O.inferflux-tokenizers.M.x": ({W}, NONE),
    "$O.inferflux-images.M.x": ({G}, NONE),
    "$O.inferflux-kv.M.x": ({W}, NONE),
    "$O.another.M.x": (NONE, NONE),
    f"$JS.ACK.{JOBS_STREAM}.scheduler.1.1.1.1.0": ({S}, NONE),
    f"$JS.ACK.{TOKENS_STREAM}.scheduler.1.1.1.1.0": (NONE, NONE),
    f"$JS.FC.{TOKENS_STREAM}.c.x": ({O}, NONE),
    "$SYS.REQ.SERVER.PING": (NONE, NONE),
    "$SYS.>": (NONE, NONE),
    "$SRV.PING": (NONE, NONE),
    "orders.new": (NONE, NONE),
}
_OPERATIONS = [
    "STREAM.CREATE",
    "STREAM.UPDATE",
    "STREAM.DELETE",
    "STREAM.INFO",
    "STREAM.PURGE",
    "STREAM.SNAPSHOT",
    "STREAM.RESTORE",
    "STREAM.MSG.GET",
    "STREAM.MSG.DELETE",
    "CONSUMER.CREATE",
    "CONSUMER.LIST",
    "CONSUMER.NAMES",
    "DIRECT.GET",
]
_OF_CONSUMERS = [
    "CONSUMER.CREATE",
    "CONSUMER.DURABLE.CREATE",
    "CONSUMER.DELETE",
    "CONSUMER.INFO",
    "CONSUMER.MSG.NEXT",
    "CONSUMER.PAUSE",
]
_READS = ("STREAM.MSG.GET", "DIRECT.GET")
_ALL = {G, S, W}
API: Mapping[str, set[str]] = {
    **{f"STREAM.INFO.{stream}": _ALL for stream in STREAMS},
    **{f"STREAM.{what}.{stream}": {S} for what in ("CREATE", "UPDATE") for stream in STREAMS},
    f"STREAM.PURGE.{JOBS_STREAM}": {G, S},
    f"STREAM.PURGE.{SCHEDULERS_STREAM}": {G, S},
    f"STREAM.PURGE.{TOKENIZERS_STREAM}": {W},
    f"STREAM.PURGE.{IMAGES_STREAM}": {G},
    f"STREAM.MSG.GET.{IMAGES_STREAM}": {G, W},
    f"STREAM.PURGE.{KV_STREAM}": {W},
    f"STREAM.MSG.GET.{KV_STREAM}": {W},
    f"STREAM.MSG.GET.{JOBS_STREAM}": {G},
    f"STREAM.MSG.GET.{TOKENS_STREAM}": {W},
    f"STREAM.MSG.GET.{TOKENIZERS_STREAM}": {G, W},
    f"DIRECT.GET.{TOKENS_STREAM}": {G, S},
    f"DIRECT.GET.{SCHEDULERS_STREAM}.$KV.inferflux-schedulers.lease.all": {S},
    **{f"CONSUMER.{what}.{JOBS_STREAM}.c": {S} for what in ("CREATE", "DELETE", "INFO", "MSG.NEXT")},
    f"CONSUMER.CREATE.{TOKENS_STREAM}.c.{subjects.tokens('acme', 'r1')}": {O},
}
ASKED = sorted(
    {f"{what}.{stream}" for what in _OPERATIONS for stream in (*STREAMS, "OTHERS", "*")}
    | {f"{what}.{stream}.c" for what in _OF_CONSUMERS for stream in (*STREAMS, "OTHERS")}
    | {f"DIRECT.GET.{TOKENS_STREAM}.{subjects.tokens(tenant, 'r1')}" for tenant in ("acme", "zeta")}
    | {f"CONSUMER.CREATE.{TOKENS_STREAM}.c.{subjects.tokens('zeta', 'r1')}"}
    | {"INFO", "STREAM.NAMES", "STREAM.LIST", ">"}
    | set(API)
)


def is_literal(name: str) -> bool:
    return not {"*", ">"} & set(name.split("."))


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GuardedNats]:
    made = GuardedNats(tmp_path_factory.mktemp("guarded-nats"), USERS)
    made.process.start()
    try:
        made.process.wait_ready()
        yield made
    finally:
        made.process.kill()


@pytest.fixture
async def scheduler(server: GuardedNats) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url(S), name="scheduler", watches_writes=True)
    await bus.ensure_streams(StreamLimits())
    yield bus
    await bus.close()


def test_no_subject_is_left_out() -> None:
    """A new one needs a row: who publishes and who reads it."""
    known = {"model": "demo", "tenant": "acme", "request_id": "r1", "worker_id": "worker-0"}
    known["host_id"] = "worker-0"
    named = [value for value in vars(subjects).values() if isinstance(value, str)]
    own = (
        value for value in vars(subjects).values() if getattr(value, "__module__", "") == subjects.__name__
    )
    for function in filter(inspect.isfunction, own):
        parameters = list(inspect.signature(function).parameters)
        if known.keys() >= set(parameters):
            named.append(function(**{name: known[name] for name in parameters}))
    found = {name for name in named if name.startswith((f"{subjects.ROOT}.", "$")) and name[-1] != "."}
    assert len(found) > 12
    assert found <= set(OURS)


@pytest.mark.parametrize("user", [user.name for user in BOUND])
async def test_a_user_publishes_and_reads_what_is_its_own_and_is_refused_all_else(
    server: GuardedNats, user: str
) -> None:
    tried = await server.connect(user)
    try:
        published = await tried.may_publish(name for name in OURS if is_literal(name))
        assert published == {name for name, (publishers, _) in OURS.items() if user in publishers}
        read = await tried.may_subscribe(OURS)
        assert read == {name for name, (_, readers) in OURS.items() if user in readers}
        asked = await tried.may_publish(f"$JS.API.{name}" for name in ASKED if is_literal(name))
        assert asked == {f"$JS.API.{name}" for name, users in API.items() if user in users}
        assert not await tried.may_subscribe(f"$JS.API.{name}" for name in ASKED)
    finally:
        await tried.client.close()


@pytest.mark.parametrize("credentials", ["", "gateway:wrong@", "unknown:password-of-gateway@", "gateway:@"])
async def test_a_client_without_the_password_of_a_user_is_refused(
    server: GuardedNats, credentials: str
) -> None:
    with pytest.raises(Unavailable, match="Authorization Violation") as refused:
        await Bus.connect(f"nats://{credentials}127.0.0.1:{server.port}", name="t", connect_timeout_s=2)
    assert "password-of" not in refused.value.message


async def test_a_refusal_is_told_though_the_connection_breaks_after_it() -> None:
    n_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_connections
        n_connections += 1
        writer.write(b'INFO {"version": "2.15.1", "max_payload": 1048576, "auth_required": true}\r\n')
        if n_connections > 1:
            writer.transport.abort()
            return
        await reader.readuntil(b"PING\r\n")
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(Unavailable, match="Authorization Violation"):
            await Bus.connect(f"nats://u:p@{LOOPBACK}:{port}", name="t", connect_timeout_s=1.5)
        assert n_connections > 1
    finally:
        server.close()


async def test_a_worker_answers_once_who_asked_it_and_no_other(server: GuardedNats) -> None:
    asker, worker = await server.connect(S), await server.connect(W)
    try:
        batches = await worker.client.subscribe(subjects.worker_batch("worker-0"))
        await worker.client.flush()
        inbox = await asker.client.subscribe("_INBOX_scheduler.mine")
        await asker.client.publish(subjects.worker_batch("worker-0"), b"batch", reply="_INBOX_scheduler.mine")
        asked = await batches.next_msg(timeout=5)
        assert await worker.may_publish([asked.reply]) == {asked.reply}
        assert (await inbox.next_msg(timeout=5)).data == b""
        assert await worker.may_publish([asked.reply, "_INBOX_scheduler.other"]) == set()
    finally:
        await asker.client.close()
        await worker.client.close()


async def test_what_is_asked_with_anything_but_an_inbox_to_reply_to_is_not_answered(
    server: GuardedNats, scheduler: Bus
) -> None:
    """A sender cannot have another user publish for it."""
    handled: list[bytes] = []

    async def on_request(message: Message) -> None:
        handled.append(message.data)
        await message.respond(b"answer")

    await scheduler.serve(subjects.SCHEDULER_ADMIN, on_request)
    await scheduler.flush()
    gateway, worker = await server.connect(G), await server.connect(W)
    try:
        commands = await worker.client.subscribe(subjects.worker_command("worker-0"))
        await worker.client.flush()
        await gateway.client.publish(
            subjects.SCHEDULER_ADMIN, b"forged", reply=subjects.worker_command("worker-0")
        )
        assert (await gateway.client.request(subjects.SCHEDULER_ADMIN, b"asked", timeout=5)).data == b"answer"
        assert handled == [b"asked"]
        with pytest.raises(nats.errors.TimeoutError):
            await commands.next_msg(timeout=0.2)
    finally:
        await gateway.client.close()
        await worker.client.close()


@pytest.mark.parametrize("user", [W, O])
async def test_who_reads_a_stream_cannot_have_an_answer_change_another(
    server: GuardedNats, scheduler: Bus, user: str
) -> None:
    """JetStream does not check where it answers to, and its own API is a place that answers can go to."""
    operator, attacker = await server.connect(nats_users.OPERATOR), await server.connect(user)
    name, tokens = f"VICTIM-{user}", subjects.tokens("acme", "r1")
    stolen = await attacker.client.subscribe(f"_INBOX_{user}.stolen.>")
    api = "$JS.API"

    async def ask(subject: str, body: object = None) -> dict[str, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        answer = await operator.client.request(f"{api}.{subject}", data, timeout=5)
        return dict(json.loads(answer.data))

    try:
        config = {"name": name, "subjects": [f"victim.{user}"], "storage": "memory", "retention": "limits"}
        assert "error" not in await ask(f"STREAM.CREATE.{name}", config)
        update = json.dumps(config | {"republish": {"src": ">", "dest": f"_INBOX_{user}.stolen.>"}}).encode()
        for stored in (b"", update):
            await operator.client.request(f"victim.{user}", b"first", timeout=5)
            await attacker.client.publish(tokens, stored)  # a reader of tokens may not
            await operator.client.publish(tokens, stored)
            consumer = {
                "filter_subject": tokens,
                "deliver_policy": "all",
                "ack_policy": "none",
                "headers_only": not stored,
                "idle_heartbeat": 100_000_000,
                "flow_control": True,
            }
            for what in ("DELETE", "PURGE", "UPDATE"):
                reply = f"{api}.STREAM.{what}.{name}"
                consumer_name = f"{what}-{len(stored)}"
                config_of = consumer | {"deliver_subject": reply, "name": consumer_name}
                asked: list[tuple[str, object]] = [
                    *((f"{kind}.{TOKENS_STREAM}", {"last_by_subj": tokens}) for kind in _READS),
                    *((f"{kind}.{TOKENS_STREAM}", {"seq": 1 << 40}) for kind in _READS),
                    (f"DIRECT.GET.{TOKENS_STREAM}.{tokens}", None),
                    (f"DIRECT.GET.{TOKENS_STREAM}.{subjects.tokens('acme', 'none')}", None),
                    (f"STREAM.INFO.{TOKENS_STREAM}", None),
                    (
                        f"CONSUMER.CREATE.{TOKENS_STREAM}.{consumer_name}.{tokens}",
                        {"stream_name": TOKENS_STREAM, "config": config_of},
                    ),
                ]
                for subject, body in asked:
                    data = b"" if body is None else json.dumps(body).encode()
                    await attacker.client.publish(f"{api}.{subject}", data, reply=reply)
            await attacker.client.flush()
            await operator.client.request(f"victim.{user}", b"secret", timeout=5)
            with pytest.raises(nats.errors.TimeoutError):
                await stolen.next_msg(timeout=0.5)
            state = (await ask(f"STREAM.INFO.{name}"))["state"]
            assert state["messages"] == state["last_seq"] > 0
    finally:
        await ask(f"STREAM.DELETE.{name}")
        await attacker.client.close()
        await operator.client.close()


@pytest.mark.parametrize("user", [G, W])
async def test_who_may_not_make_streams_waits_for_the_one_who_may(server: GuardedNats, user: str) -> None:
    operator = await server.connect(nats_users.OPERATOR)
    for stream in STREAMS:
        await operator.client.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=5)
    await operator.client.close()
    bus = await Bus.connect(server.url(user), name=user)
    waiting = asyncio.create_task(bus.ensure_streams(StreamLimits()))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    maker = await Bus.connect(server.url(S), name="scheduler")
    try:
        await maker.ensure_streams(StreamLimits())
        await asyncio.wait_for(waiting, 10)
    finally:
        await maker.close()
        await bus.close()


async def test_a_request_that_is_refused_fails_at_once_and_by_name(
    server: GuardedNats, scheduler: Bus
) -> None:
    bus = await Bus.connect(server.url(W), name="worker")
    try:
        with pytest.raises(Internal) as refused:
            await asyncio.wait_for(bus.request(subjects.SCHEDULER_ADMIN, b"", timeout_s=30), 10)
        assert refused.value.reason == "NATS_FORBIDDEN"
        with pytest.raises(Internal):
            await asyncio.wait_for(bus.enqueue(subjects.jobs("demo"), b"", msg_id="a"), 10)
    finally:
        await bus.close()


async def test_a_job_goes_from_the_gateway_to_the_scheduler(server: GuardedNats, scheduler: Bus) -> None:
    gateway = await Bus.connect(server.url(G), name="gateway", watches_writes=True)
    try:
        await gateway.ensure_streams(StreamLimits())
        assert await gateway.enqueue(subjects.jobs("demo"), b"job", msg_id=secrets.token_hex(8))
        consumer = await scheduler.consume_jobs(max_outstanding=8)
        job = await asyncio.wait_for(anext(consumer), 10)
        assert job.data == b"job"
        await job.in_progress()
        await job.ack()
        await consumer.close()
        assert gateway.write_problem == ""
    finally:
        await gateway.close()


async def test_the_scheduler_holds_leases_and_a_worker_stores_what_gateways_read(
    server: GuardedNats, scheduler: Bus
) -> None:
    leases = scheduler.key_value(subjects.SCHEDULERS_BUCKET)
    name = f"lease.{secrets.token_hex(4)}"
    revision = await leases.create(name, b"mine")
    assert revision is not None
    entry = await leases.get(name)
    assert entry is not None
    assert (entry.value, entry.revision) == (b"mine", revision)
    worker, gateway = await Bus.connect(server.url(W), name=W), await Bus.connect(server.url(G), name=G)
    try:
        await worker.put_object("digest", b"tokenizer" * 100_000)
        await worker.put_object("digest", b"another" * 100_000)
        assert await gateway.get_object("digest") == b"another" * 100_000
        await worker.publish(subjects.tokens("acme", "r9"), b"chunk")
        await worker.flush()
        assert await gateway.replay(subjects.tokens("acme", "r9")) == [b"chunk"]
        assert await worker.replay_one_by_one(subjects.tokens("acme", "r9")) == [b"chunk"]
        assert await worker.replay_one_by_one(subjects.tokens("acme", "none")) == []
        assert await scheduler.replay(subjects.tokens("acme", "r9")) == [b"chunk"]
    finally:
        await worker.close()
        await gateway.close()


async def test_a_tenants_user_reads_its_own_tokens_live_and_late_and_no_others(
    server: GuardedNats, scheduler: Bus
) -> None:
    request_id = secrets.token_hex(8)
    chunk = tokens_pb2.TokenChunk(epoch=1, token_ids=[1], text="one")
    last = tokens_pb2.TokenChunk(epoch=1, offset=1)
    last.finished.SetInParent()
    for tenant in ("acme", "zeta"):
        for message in (chunk, last):
            await scheduler.publish(subjects.tokens(tenant, request_id), message.SerializeToString())
    await scheduler.flush()
    async with TokenReader(server.url(O)) as reader:
        assert [c.text async for c in reader.read("acme", request_id)] == ["one", ""]
        with pytest.raises(PermissionDenied, match="zeta"):
            await anext(reader.read("zeta", request_id))


async def test_a_reader_says_at_once_that_its_password_is_wrong(server: GuardedNats) -> None:
    scheme, _, rest = server.url(O).partition("://")
    user, address = rest.partition(":")[0], rest.rpartition("@")[2]
    async with asyncio.timeout(8):
        with pytest.raises(Unauthenticated):
            async with TokenReader(f"{scheme}://{user}:wrong@{address}"):
                pass


async def test_a_reader_says_that_no_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_reader, "_CONNECT_LIMIT_S", 0.5)
    with pytest.raises(Unavailable, match="no NATS server answers"):
        async with TokenReader(f"nats://{LOOPBACK}:{free_port()}"):
            pass


async def test_a_tenants_user_makes_no_consumer_that_reads_more_than_it_names(
    server: GuardedNats, scheduler: Bus
) -> None:
    """The subject is what the permission allows; the body says what is read."""
    tried = await server.connect(O)
    try:
        name = f"$JS.API.CONSUMER.CREATE.{TOKENS_STREAM}.mine.{subjects.tokens('acme', '>')}"
        body = (
            b'{"stream_name": "INFERFLUX_TOKENS", "config": {"name": "mine", "ack_policy": "none", '
            b'"deliver_subject": "_INBOX_tokens-acme.x", "filter_subject": "inferflux.v1.tokens.zeta.>"}}'
        )
        answer = await tried.client.request(name, body, timeout=5)
        assert b'"error"' in answer.data
    finally:
        await tried.client.close()
