"""What was published on the token subjects, whoever listened.

Messages are missed while NATS is away, so nothing is concluded from what was not heard. What was heard must
agree: a token index has one token, whatever epoch it is of, and an epoch ends once. The same message may come
again: workers publish what they have once more after a reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from inferflux.common import subjects
from inferflux.common.bus import Bus, Message
from inferflux.v1 import tokens_pb2


@dataclass(slots=True)
class _Overheard:
    ends: dict[int, tokens_pb2.TokenChunk] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)


class Overheard:
    """Judges chunks as they are published (pure)."""

    def __init__(self, expected: Mapping[str, Sequence[int]]) -> None:
        """`expected`: the whole answer by request id; requests that are not in it are passed over."""
        self._expected = expected
        self._requests: dict[str, _Overheard] = {}
        self.chunks = 0

    def hear(self, chunk: tokens_pb2.TokenChunk) -> None:
        expected = self._expected.get(chunk.request_id)
        if expected is None:
            return
        self.chunks += 1
        heard = self._requests.setdefault(chunk.request_id, _Overheard())
        should_be = list(expected[chunk.offset : chunk.offset + len(chunk.token_ids)])
        if list(chunk.token_ids) != should_be:
            said = f"tokens {list(chunk.token_ids)} at {chunk.offset} instead of {should_be}"
            heard.wrongs.append(f"epoch {chunk.epoch} published {said}")
        if chunk.WhichOneof("event") in ("finished", "failed"):
            self._hear_end(heard, chunk)

    def _hear_end(self, heard: _Overheard, chunk: tokens_pb2.TokenChunk) -> None:
        earlier = heard.ends.setdefault(chunk.epoch, chunk)
        if earlier != chunk:
            heard.wrongs.append(f"epoch {chunk.epoch} ended twice: {_ending(earlier)}, then {_ending(chunk)}")

    def ends_of(self, request_id: str) -> int:
        """Epochs of the request that were heard to end."""
        heard = self._requests.get(request_id)
        return len(heard.ends) if heard is not None else 0

    def wrongs(self) -> dict[str, list[str]]:
        """What was wrong, by request id."""
        return {request_id: heard.wrongs for request_id, heard in self._requests.items() if heard.wrongs}


def _ending(chunk: tokens_pb2.TokenChunk) -> str:
    return f"{{{' '.join(str(chunk).split())}}}"


async def listen(nats_url: str, overheard: Overheard) -> Bus:
    """Hear everything from now on, until the returned connection is closed."""
    bus = await Bus.connect(nats_url, name="chaos")

    async def hear(message: Message) -> None:
        try:
            overheard.hear(tokens_pb2.TokenChunk.FromString(message.data))
        except DecodeError:
            return

    await bus.serve(subjects.TOKENS_ALL, hear)
    await bus.flush()
    return bus
