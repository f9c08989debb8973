"""`inferflux-client` against the whole stack: gateways that die, readers that leave, errors."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from harness import client as harness
from harness.another_gateway import AnotherGateway, another_gateway
from harness.commands import outcome_of

from inferflux.cli.ask.generation import user_message
from inferflux.cli.reach import client as cli
from inferflux.cli.reach.errors import in_words
from inferflux.cli.reach.target import Target
from inferflux.cli.stack import Stack, StackOptions
from inferflux.cli.stack.servers import free_port
from inferflux.client import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from inferflux.client.token_reader import TokenReader
from inferflux.v1 import cluster_pb2, generation_pb2

pytestmark = pytest.mark.e2e

MODEL = harness.MODEL
SURE = "Count down from 30 to 1."
LONG_TOKENS = 700
PARAMS = generation_pb2.GenerationParams(
    max_tokens=300, sampling=generation_pb2.SamplingParams(temperature=0)
)


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[Stack]:
    """One thread, so that streams are under way for a while."""
    async with Stack(StackOptions(slots=4, threads=1, gateways=2)) as running:
        yield running


@pytest.fixture
async def doomed(stack: Stack) -> AsyncIterator[AnotherGateway]:
    """A gateway that the test kills."""
    async with another_gateway(stack) as gateway:
        yield gateway


@pytest.fixture
async def sdk(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(stack.endpoint, api_key=stack.api_key) as made:
        yield made


async def test_a_stream_outlives_its_gateway_with_every_token_once(
    stack: Stack, doomed: AnotherGateway, sdk: AsyncClient
) -> None:
    expected = await sdk.chat(SURE, model=MODEL, temperature=0, max_tokens=300).text()
    async with AsyncClient([doomed.endpoint, stack.endpoint], api_key=stack.api_key) as client:
        stream = client.chat(SURE, model=MODEL, temperature=0, max_tokens=300)
        ids: list[int] = []
        async for chunk in stream:
            if chunk.token_ids:
                assert chunk.offset == len(ids)
                ids += chunk.token_ids
                doomed.kill()
        assert stream.resumes == 1
        assert await stream.text() == expected
        assert stream.usage is not None
        assert stream.usage.completion_tokens == len(ids) == len(stream.token_ids)
        # From then on the client calls the other gateway first.
        again = client.chat("Hello", model=MODEL, max_tokens=4)
        await again.text()
        assert again.resumes == 0


@pytest.mark.parametrize("kind", ["", "ipv4:"], ids=["in order", "in turn"])
async def test_no_stream_fails_when_one_of_two_gateways_is_killed(
    stack: Stack, sdk: AsyncClient, kind: str
) -> None:
    # Streams beside each other change the last bits of logits, and with them tokens that are near ties.
    whole = sdk.chat(SURE, model=MODEL, temperature=0)
    await whole.text()
    killed = stack.processes["gateway-0"]
    old = killed.pid

    async with AsyncClient(kind + ",".join(stack.endpoints), api_key=stack.api_key) as client:

        async def read() -> tuple[list[int], int]:
            stream = client.chat(SURE, model=MODEL, temperature=0)
            ids: list[int] = []
            async for chunk in stream:
                assert chunk.offset == len(ids)
                ids += chunk.token_ids
                if ids and killed.pid == old:
                    killed.signal(signal.SIGKILL)
            return ids, stream.resumes

        answers = await asyncio.gather(*(read() for _ in range(12)))
    assert [ids for ids, _ in answers] == [whole.token_ids] * 12
    # In turn, the gateway that connected first may have had all calls.
    assert kind or any(resumes for _, resumes in answers)
    await stack.wait_ready()
    assert killed.pid != old
    async with cli.Client(stack.target) as operator, asyncio.timeout(30):
        rows = await _gateway_rows(operator)
        while not all(row.is_ready for row in rows):
            await asyncio.sleep(0.05)
            rows = await _gateway_rows(operator)
    assert [row.detail.partition(",")[0] for row in rows] == list(stack.endpoints)


async def _gateway_rows(operator: cli.Client) -> list[cluster_pb2.ServiceStatus]:
    return [row for row in (await operator.status()).services if row.name == "gateway"]


@pytest.mark.parametrize("n_read", [0, 5], ids=["before a chunk", "under way"])
async def test_a_reader_that_stopped_waiting_for_a_chunk_reads_on(sdk: AsyncClient, n_read: int) -> None:
    expected = await sdk.chat(SURE, model=MODEL, temperature=0, max_tokens=300).text()
    async with sdk.chat(SURE, model=MODEL, temperature=0, max_tokens=300, skip_answer_cache=True) as stream:
        for _ in range(n_read):
            await anext(stream)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.text(), 0.001)
        assert await stream.text() == expected


async def test_a_stream_of_the_blocking_client_outlives_its_gateway_too(
    stack: Stack, doomed: AnotherGateway
) -> None:
    def read() -> tuple[int, list[int], str]:
        with Client([doomed.endpoint, stack.endpoint], api_key=stack.api_key) as client:
            stream = client.generate(
                "Tell me a story", model=MODEL, max_tokens=LONG_TOKENS, ignore_eos=True, temperature=0
            )
            ids: list[int] = []
            for chunk in stream:
                if chunk.token_ids:
                    assert chunk.offset == len(ids)
                    ids += chunk.token_ids
                    doomed.kill()
            return stream.resumes, ids, stream.finish_reason

    resumes, ids, reason = await asyncio.to_thread(read)
    assert (resumes, len(ids), reason) == (1, LONG_TOKENS, "length")


@pytest.mark.parametrize("leave", ["close", "context", "collected"])
async def test_a_reader_that_leaves_frees_the_slot(
    sdk: AsyncClient, client: harness.Client, leave: str
) -> None:
    stream = sdk.generate("Tell me a story", model=MODEL, ignore_eos=True, resume_window_s=300)
    async for chunk in stream:
        if chunk.token_ids:
            break
    if leave == "close":
        await stream.close()
    elif leave == "context":
        async with stream:
            pass
    else:
        del stream, chunk
        gc.collect()
    await client.until_idle()


READS_A_LITTLE = """
import asyncio, sys
from inferflux.client import AsyncClient

held = []

async def read_a_little(endpoint, api_key, model, how):
    client = AsyncClient(endpoint, api_key=api_key)
    stream = client.generate("Tell me a story", model=model, ignore_eos=True, resume_window_s=300)
    held.extend([stream] if how == "held" else [])
    while not (await anext(stream)).token_ids:
        pass
    print(stream.request_id)

asyncio.run(read_a_little(*sys.argv[1:]))
"""


@pytest.mark.parametrize("how", ["dropped", "held"])
async def test_a_request_ends_with_the_event_loop_of_its_reader(
    stack: Stack, sdk: AsyncClient, how: str
) -> None:
    command = [sys.executable, "-c", READS_A_LITTLE, stack.endpoint, stack.api_key, MODEL, how]
    code, out, err = await outcome_of(command)
    assert code == 0, err
    resumed = sdk.resume(out.strip())
    await resumed.text()
    assert resumed.finish_reason == "cancelled"


@pytest.mark.parametrize("leave", ["close", "context", "collected", "client"])
async def test_a_blocking_reader_that_leaves_frees_the_slot(
    stack: Stack, client: harness.Client, leave: str
) -> None:
    def read_a_little() -> None:
        made = Client(stack.endpoint, api_key=stack.api_key)
        stream = made.generate("Tell me a story", model=MODEL, ignore_eos=True, resume_window_s=300)
        while not next(stream).token_ids:
            pass
        if leave == "close":
            stream.close()
            assert list(stream) == []
        elif leave == "context":
            with stream:
                pass
        elif leave == "collected":
            del stream
            gc.collect()
        made.close()

    await asyncio.to_thread(read_a_little)
    await client.until_idle()


async def test_a_reader_that_leaves_before_the_first_token_frees_the_slot(
    sdk: AsyncClient, client: harness.Client
) -> None:
    for _ in range(5):
        async with sdk.generate("Tell me", model=MODEL, ignore_eos=True, resume_window_s=300):
            pass
    await client.until_idle()


async def test_errors_say_their_reason_and_their_field(stack: Stack, sdk: AsyncClient) -> None:
    with pytest.raises(NotFound) as unknown:
        await sdk.chat("Hello", model="nothing").text()
    assert unknown.value.reason == "UNKNOWN_MODEL"
    with pytest.raises(InvalidArgument) as bad:
        await sdk.chat("Hello", model=MODEL, temperature=-1).text()
    assert bad.value.field.endswith("temperature")
    with pytest.raises(DeadlineExceeded):
        await sdk.generate("Tell me", model=MODEL, ignore_eos=True, timeout_s=0.3).text()
    with pytest.raises(NotFound):
        await sdk.resume("never-sent").text()
    async with AsyncClient(stack.endpoint, api_key="ifx_" + 43 * "x") as stranger:
        with pytest.raises(Unauthenticated):
            await stranger.models()
    away = f"127.0.0.1:{free_port()}"
    async with AsyncClient(away, api_key=stack.api_key, retries=0) as nowhere:
        with pytest.raises(Unavailable) as gone:
            await nowhere.chat("Hello", model=MODEL).text()
        assert gone.value.message == f"nothing answers at {away}"


async def test_a_gateway_that_is_away_is_passed_by(stack: Stack) -> None:
    addresses = [f"127.0.0.1:{free_port()}", stack.endpoint]
    async with AsyncClient(addresses, api_key=stack.api_key, retries=0) as client:
        assert await client.chat("Hello", model=MODEL, max_tokens=4).text()
    with Client(addresses, api_key=stack.api_key, retries=0) as blocking:
        assert MODEL in [model.card.name for model in await asyncio.to_thread(blocking.models)]


async def test_texts_and_tokens_are_those_of_the_model(sdk: AsyncClient) -> None:
    ids = await sdk.tokenize("Hello there", model=MODEL)
    assert "Hello there" in await sdk.detokenize(ids, model=MODEL)
    assert len(await sdk.tokenize([{"role": "user", "content": "Hello there"}], model=MODEL)) > len(ids)


async def test_tokens_are_read_from_nats_live_and_late(stack: Stack, sdk: AsyncClient) -> None:
    async with TokenReader(stack.tokens_url) as reader:

        async def read() -> list[int]:
            async with aclosing(reader.read("default", "read-along")) as chunks:
                return [i async for chunk in chunks for i in chunk.token_ids]

        live = asyncio.create_task(read())
        stream = sdk.chat(SURE, model=MODEL, temperature=0, max_tokens=300, request_id="read-along")
        await stream.text()
        assert await live == stream.token_ids
        assert await read() == stream.token_ids
        late = [i async for c in reader.read("default", "read-along", offset=7) for i in c.token_ids]
        assert late == stream.token_ids[7:]


async def test_a_chat_of_inferctl_goes_on_at_another_gateway(stack: Stack, doomed: AnotherGateway) -> None:
    target = Target(f"{doomed.endpoint},{stack.endpoint}", stack.api_key)
    async with cli.Client(target) as client:
        texts, resumes = await _killed_under(client, doomed)
    assert len(resumes) == 1
    async with cli.Client(stack.target) as client:
        chunks = client.chat([user_message(SURE)], model=MODEL, params=PARAMS)
        assert texts == "".join([chunk.text async for chunk in chunks])


async def test_a_chat_that_only_one_gateway_served_says_what_to_do(
    stack: Stack, doomed: AnotherGateway
) -> None:
    async with cli.Client(Target(doomed.endpoint, stack.api_key)) as client:
        with pytest.raises(Unavailable) as lost:
            await _killed_under(client, doomed)
    said = in_words(lost.value)
    assert said.startswith(f"the connection to {doomed.endpoint} was lost")
    assert "--resume-window" in said


async def _killed_under(client: cli.Client, doomed: AnotherGateway) -> tuple[str, list[None]]:
    """The text of an answer under which a gateway is killed, and how often its stream was resumed."""
    resumes: list[None] = []
    texts = []
    chunks = client.chat(
        [user_message(SURE)], model=MODEL, params=PARAMS, on_resumed=lambda: resumes.append(None)
    )
    async with aclosing(chunks):
        async for chunk in chunks:
            texts.append(chunk.text)
            if chunk.token_ids:
                doomed.kill()
    return "".join(texts), resumes
