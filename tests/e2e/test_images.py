"""Images and sounds through the whole stack: a projector of random weights, so answers mean nothing."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from harness.children import ENGINE, child_of
from harness.client import MODEL, Answer, Client
from harness.http_client import HttpClient, openai_client
from harness.projectors import AUDIO_TOKENS, IMAGE_TOKENS, mixed_projector, picture, tone

from inferflux.cli.stack import Stack, StackOptions
from inferflux.v1 import generation_pb2, inference_pb2

pytestmark = pytest.mark.e2e

_WIDTH = 256
_GREEDY = generation_pb2.SamplingParams(temperature=0.0)


@pytest.fixture(scope="module")
async def stack(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    mmproj = tmp_path_factory.mktemp("projector") / "mmproj.gguf"
    mmproj.write_bytes(mixed_projector(_WIDTH).data())
    options = StackOptions(
        model=demo_model,
        slots=4,
        threads=1,
        service_env={
            "worker": {"INFERFLUX_WORKER_MMPROJ_PATH": str(mmproj)},
            "gateway": {"INFERFLUX_GATEWAY_IMAGE_NETWORKS": "127.0.0.1"},
        },
    )
    async with Stack(options) as running:
        yield running


@pytest.fixture
def http(stack: Stack) -> HttpClient:
    return HttpClient(int(stack.http_url.rpartition(":")[2]), stack.api_key)


def asked(*images: bytes, max_tokens: int = 12, text: str = "What is this?") -> inference_pb2.ChatRequest:
    parts = [inference_pb2.ContentPart(text=text)]
    parts += [inference_pb2.ContentPart(image=inference_pb2.ImageInput(data=image)) for image in images]
    return inference_pb2.ChatRequest(
        model=MODEL,
        messages=[inference_pb2.ChatMessage(role="user", parts=parts)],
        params=generation_pb2.GenerationParams(max_tokens=max_tokens, ignore_eos=True, sampling=_GREEDY),
    )


def used(answer: Answer) -> generation_pb2.Usage:
    assert answer.terminal is not None
    return answer.terminal.usage


async def surely(client: Client, *images: bytes) -> tuple[Answer, list[float]]:
    """An answer, and the log-probability of each of its tokens."""
    request = asked(*images, max_tokens=24)
    request.params.sampling.logprobs = 0
    answer, found = Answer(), []
    async for response in client.inference.Chat(request, metadata=client.metadata()):
        answer.add(response.chunk)
        found += [each.chosen.logprob for each in response.chunk.logprobs]
    return answer, found


def apart(one: list[float], other: list[float]) -> float:
    """The largest difference between two of a place."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


async def test_another_image_is_another_prompt_and_the_same_one_is_found_computed(client: Client) -> None:
    without = await client.ask(asked())
    first, likely = await surely(client, picture(1))
    other, other_likely = await surely(client, picture(2))
    again, again_likely = await surely(client, picture(1))
    assert used(first).prompt_tokens > used(without).prompt_tokens + IMAGE_TOKENS - 2
    # The demo model was not trained on images: what it says may be the same, how surely is not.
    assert apart(other_likely, likely) > 10 * apart(again_likely, likely)
    assert apart(again_likely, likely) < 0.01
    assert again.token_ids == first.token_ids
    # What the other one found is the text before the image.
    assert used(other).cached_prompt_tokens < used(first).prompt_tokens - IMAGE_TOKENS
    assert used(again).cached_prompt_tokens > used(other).cached_prompt_tokens + IMAGE_TOKENS


async def test_several_images_keep_their_order(client: Client) -> None:
    one, likely = await surely(client, picture(3), picture(4))
    two, other_likely = await surely(client, picture(4), picture(3))
    assert used(one).prompt_tokens == used(two).prompt_tokens
    assert apart(other_likely, likely) > 0.01


async def test_openai_s_client_sends_images_as_data_and_by_url(stack: Stack) -> None:
    served = picture(5)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: {len(served)}\r\n\r\n"
        writer.write(head.encode() + served)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    urls = [
        f"data:image/png;base64,{base64.b64encode(served).decode()}",
        f"http://127.0.0.1:{port}/picture.png",
    ]
    answers = []
    async with server, openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as sdk:
        for url in urls:
            made = await sdk.chat.completions.create(
                model=MODEL,
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "What is this?"},
                            {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                        ],
                    }
                ],
                max_tokens=8,
                temperature=0,
            )
            answers.append(made.choices[0].message.content)
    assert answers[0] == answers[1]


async def test_a_response_is_the_answer_of_a_chat_with_the_same_image_and_sound(stack: Stack) -> None:
    url = f"data:image/png;base64,{base64.b64encode(picture(6)).decode()}"
    sound = base64.b64encode(tone(1.0)).decode()
    text = "What is this?"
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as sdk:
        chat = await sdk.chat.completions.create(
            model=MODEL,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": text},
                        {"type": "image_url", "image_url": {"url": url}},
                        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
                    ],
                }
            ],
            max_tokens=12,
            temperature=0,
        )
        response = await sdk.responses.create(
            model=MODEL,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": text},
                        {"type": "input_image", "image_url": url, "detail": "auto"},
                        {"type": "input_file", "file_data": sound, "filename": "said.wav"},
                    ],
                }
            ],
            max_output_tokens=12,
            temperature=0,
        )
    assert chat.usage is not None
    assert response.usage is not None
    assert response.output_text == chat.choices[0].message.content
    assert response.usage.input_tokens == chat.usage.prompt_tokens > AUDIO_TOKENS + IMAGE_TOKENS
    assert response.usage.input_tokens_details.cached_tokens > AUDIO_TOKENS + IMAGE_TOKENS


async def test_what_a_response_cannot_use_is_refused_by_its_names(http: HttpClient) -> None:
    files = {
        "image_url": {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        "detail": {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "original"},
        "input_audio": {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        "file_url": {"type": "input_file", "file_url": "https://10.0.0.1/x.png"},
    }
    for param, part in files.items():
        body = {"model": MODEL, "input": [{"role": "user", "content": [part]}]}
        answer = await http.post("/v1/responses", body)
        assert (answer.status, answer.error["param"]) == (400, f"input[0].content[0].{param}")


@pytest.mark.parametrize(
    ("url", "detail", "param", "said"),
    [
        (
            "data:image/png;base64,AAAA",
            "auto",
            "messages[0].content[0].image_url",
            "no PNG, JPEG, WebP or GIF",
        ),
        ("data:image/png,AAAA", "auto", "messages[0].content[0].image_url", "base64"),
        ("https://10.0.0.1/x.png", "auto", "messages[0].content[0].image_url", "connected to"),
        ("data:image/png;base64,AAAA", "huge", "messages[0].content[0].image_url.detail", "low"),
    ],
)
async def test_what_cannot_be_used_is_refused_by_name(
    http: HttpClient, url: str, detail: str, param: str, said: str
) -> None:
    part = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    answer = await http.post("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert said in answer.error["message"]


async def test_a_prompt_without_a_template_has_images_and_sounds_at_its_markers(http: HttpClient) -> None:
    def body(*files: bytes, text: str = "A <__media__> and <__media__>.") -> dict[str, object]:
        given = {"prompt_string": text, "multimodal_data": [base64.b64encode(f).decode() for f in files]}
        return {"prompt": given, "temperature": 0, "n_predict": 8, "n_probs": 1, "ignore_eos": True}

    async def told(*files: bytes) -> tuple[int, list[float]]:
        answer = (await http.post("/completion", body(*files))).json()
        return answer["tokens_evaluated"], [each["logprob"] for each in answer["completion_probabilities"]]

    bare = (await http.post("/completion", body(text="A  and ."))).json()["tokens_evaluated"]
    n, likely = await told(picture(1), tone(1.0))
    other_n, other_likely = await told(picture(2), tone(1.0))
    _, again_likely = await told(picture(1), tone(1.0))
    assert n == other_n > bare + IMAGE_TOKENS + AUDIO_TOKENS - 4
    assert apart(other_likely, likely) > 10 * apart(again_likely, likely)
    for files, param in (
        ((picture(), b"no image"), "prompt.multimodal_data[1]"),
        ((b"",), "prompt.multimodal_data"),
    ):
        refused = await http.post("/completion", body(*files))
        assert (refused.status, refused.error["param"]) == (400, param)


async def test_an_answer_about_an_image_can_be_constrained_and_is_not_drafted(client: Client) -> None:
    request = asked(picture(7), max_tokens=40)
    request.params.ignore_eos = False
    request.params.constraint.choice.texts.extend(["a cat", "a dog"])
    request.params.speculation = generation_pb2.SPECULATION_NGRAM
    answer = await client.ask(request)
    assert answer.text in ("a cat", "a dog")
    assert answer.terminal is not None
    assert answer.terminal.timings.draft_n == 0


async def test_penalties_look_at_texts_alone(client: Client) -> None:
    request = asked(picture(8), max_tokens=30)
    request.params.sampling.MergeFrom(
        generation_pb2.SamplingParams(
            repeat_penalty=1.3, frequency_penalty=0.5, penalty_last_n=-1, dry_multiplier=0.8
        )
    )
    assert len((await client.ask(request)).token_ids) == 30


async def test_a_sound_beside_an_image_decides_the_answer(client: Client) -> None:
    def with_tone(hertz: float) -> inference_pb2.ChatRequest:
        request = asked(picture(9), max_tokens=12)
        request.messages[0].parts.add(audio=inference_pb2.AudioInput(data=tone(1.0, hertz), format="wav"))
        return request

    low, again, high = [await client.ask(with_tone(hertz)) for hertz in (200.0, 200.0, 3000.0)]
    assert used(low).prompt_tokens > AUDIO_TOKENS + IMAGE_TOKENS
    assert again.token_ids == low.token_ids
    assert used(again).cached_prompt_tokens > AUDIO_TOKENS + IMAGE_TOKENS
    # What another tone shares is what is before it.
    assert IMAGE_TOKENS < used(high).cached_prompt_tokens < AUDIO_TOKENS


async def test_openai_s_client_sends_sounds(stack: Stack) -> None:
    data = base64.b64encode(tone(1.0)).decode()
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as sdk:
        made = await sdk.chat.completions.create(
            model=MODEL,
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}],
                }
            ],
            max_tokens=4,
            temperature=0,
        )
    assert made.usage is not None
    assert made.usage.prompt_tokens > AUDIO_TOKENS


async def test_openai_s_client_has_a_sound_transcribed(stack: Stack) -> None:
    async with openai_client(int(stack.http_url.rpartition(":")[2]), stack.api_key) as sdk:
        create, sound, short = sdk.audio.transcriptions.create, ("a.wav", tone(1.0)), {"max_tokens": 8}
        made = await create(model=MODEL, file=sound, extra_body=short)
        text = await create(model=MODEL, file=sound, extra_body=short, response_format="text")
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model=MODEL, file=("a.wav", b"no sound"))
    assert made.usage is not None
    assert made.usage.type == "tokens"
    assert made.usage.input_tokens > AUDIO_TOKENS
    assert 0 < made.usage.output_tokens <= 8
    assert str(text).strip() == made.text
    assert caught.value.param == "file"


async def test_an_answer_goes_on_after_its_engine_was_killed(stack: Stack, client: Client) -> None:
    request = asked(picture(6), max_tokens=200)
    answer = Answer()
    running = asyncio.create_task(client.ask(request, answer=answer))
    async with asyncio.timeout(30):
        while len(answer.token_ids) < 5:
            await asyncio.sleep(0.005)
    engine = child_of(stack.processes["worker-0"].pid, ENGINE)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    before = list(answer.token_ids)
    async with asyncio.timeout(60):
        await running
    assert len(answer.token_ids) == 200
    assert answer.token_ids[: len(before)] == before
