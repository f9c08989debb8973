"""What was published on the token subjects, with or without readers.

Messages are missed while NATS is away, so nothing follows from what is missing. What was received must
agree: a token index has one token, whatever epoch it is of, and an epoch ends once. The same message may come
again: workers publish what they have once more after a reconnect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from inferflux.common.bus import Bus, Message
from inferflux.common.contract import subjects
from inferflux.v1 import tokens_pb2


@dataclass(slots=True)
class _OfRequest:
    ends: dict[int, tokens_pb2.TokenChunk] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)


class Published:
    """Judges chunks as they are published (pure)."""

    def __init__(self, expected: Mapping[str, Sequence[int]]) -> None:
        """`expected`: the whole answer by request id; requests that are not in it are skipped."""
        self._expected = expected
        self._requests: dict[str, _OfRequest] = {}
        self.chunks = 0

    def add(self, chunk: tokens_pb2.TokenChunk) -> None:
        expected = self._expected.get(chunk.request_id)
        if expected is None:
            return
        self.chunks += 1
        found = self._requests.setdefault(chunk.request_id, _OfRequest())
        should_be = list(expected[chunk.offset : chunk.offset + len(chunk.token_ids)])
        if list(chunk.token_ids) != should_be:
            said = f"tokens {list(chunk.token_ids)} at {chunk.offset} instead of {should_be}"
            found.wrongs.append(f"epoch {chunk.epoch} published {said}")
        if chunk.WhichOneof("event") in ("finished", "failed"):
            self._add_end(found, chunk)

    def _add_end(self, found: _OfRequest, chunk: tokens_pb2.TokenChunk) -> None:
        earlier = found.ends.setdefault(chunk.epoch, chunk)
        if earlier != chunk:
            found.wrongs.append(f"epoch {chunk.epoch} ended twice: {_ending(earlier)}, then {_ending(chunk)}")

    def ends_of(self, request_id: str) -> int:
        """Epochs of the request that ended."""
        found = self._requests.get(request_id)
        return len(found.ends) if found is not None else 0

    def wrongs(self) -> dict[str, list[str]]:
        """What was wrong, by request id."""
        return {request_id: found.wrongs for request_id, found in self._requests.items() if found.wrongs}


def _ending(chunk: tokens_pb2.TokenChunk) -> str:
    return f"{{{' '.join(str(chunk).split())}}}"


async def listen(nats_url: str, published: Published) -> Bus:
    """Receive everything from now on, until the returned connection is closed."""
    bus = await Bus.connect(nats_url, name="chaos")

    async def on_message(message: Message) -> None:
        try:
            published.add(tokens_pb2.TokenChunk.FromString(message.data))
        except DecodeError:
            return

    await bus.serve(subjects.TOKENS_ALL, on_message)
    await bus.flush()
    return bus
