"""A stream of events says that it is still there, but only while it says nothing else."""

from __future__ import annotations

from starlette.types import Message

from inferflux.gateway.http.front.exchange import Exchange
from inferflux.gateway.http.front.sse import EventStream
from inferflux.gateway.http.openai.answers import Head
from inferflux.gateway.http.openai.chat import ChatStream


class Client:
    """Takes what an exchange sends."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, message: Message) -> None:
        self.bodies.append(message.get("body", b""))

    async def receive(self) -> Message:
        raise AssertionError("nothing is received")


async def test_a_comment_is_sent_only_while_nothing_else_is() -> None:
    client = Client()
    events = ChatStream(Head("1", "demo", 7), n=1, has_logprobs=False)
    stream = EventStream(Exchange({"headers": []}, client.receive, client.send), events)
    await stream.on_idle()
    await stream.send([{"a": 1}])
    await stream.on_idle()
    await stream.on_idle()
    await stream.end()
    said = [b": waiting\n\n", b'data: {"a":1}\n\n', b": waiting\n\n", b"data: [DONE]\n\n"]
    assert client.bodies == [b"", *said]
