"""What the answer cache saves, and what it costs a request that is not in it.

    python -m benchmarks.answer_cache [--rounds 100] [--prompt-tokens 256] [--max-tokens 64] [--json FILE]

One stack with the cache on answers one request at a time, in rounds of three that come in another order each:

- computed: a prompt of its own, with `skip_answer_cache`
- missed: a prompt of its own; it is looked up, computed and kept
- cached: the prompt that was missed in the round before

Prints medians with their quartiles, the ratio of cached to computed, and what a look-up adds: the median of
(missed - computed) over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from dataclasses import dataclass

import grpc.aio
from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.v1 import generation_pb2, inference_pb2, inference_pb2_grpc

from .command_line import add_json, make_parser, positive, write_json

KINDS = ("computed", "missed", "cached")
# Token ids that are ordinary text in the demo model.
_IDS = range(300, 1800)
_WARM_UP_ROUNDS = 5


_START_LIMIT_S = 30.0


class NotAsMeant(Exception):
    """An answer came from the cache and should not have, or the reverse."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds from the call to the first token, and to the end."""

    first_s: float
    whole_s: float


class Asker:
    """Asks a stack, one request at a time."""

    def __init__(self, stack: Stack, channel: grpc.aio.Channel, max_tokens: int) -> None:
        self._stack, self._max_tokens = stack, max_tokens
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)

    async def ask(self, ids: list[int], *, kind: str) -> Timed:
        """Time one request.

        Raises:
            NotAsMeant: it was answered from the cache and should not have been, or the reverse.
        """
        request = inference_pb2.GenerateRequest(
            model=self._stack.model_name,
            token_ids=inference_pb2.TokenIds(ids=ids),
            params=generation_pb2.GenerationParams(
                max_tokens=self._max_tokens,
                ignore_eos=True,
                sampling=generation_pb2.SamplingParams(temperature=0),
            ),
            skip_answer_cache=kind == "computed",
        )
        began_s, first_s, usage = time.perf_counter(), 0.0, generation_pb2.Usage()
        metadata = grpc_client.outgoing(api_key=self._stack.api_key)
        async for response in self._stub.Generate(request, metadata=metadata):
            if response.chunk.token_ids and not first_s:
                first_s = time.perf_counter() - began_s
            if response.chunk.HasField("finished"):
                usage = response.chunk.finished.usage
        if bool(usage.cached_completion_tokens) != (kind == "cached"):
            raise NotAsMeant(f"a request that should be {kind} used {usage}")
        return Timed(first_s, time.perf_counter() - began_s)

    async def until_kept(self, ids: list[int]) -> None:
        """Ask until the answer comes from the cache: first the gateway and Redis agree on a salt."""
        async with asyncio.timeout(_START_LIMIT_S):
            while True:
                with contextlib.suppress(NotAsMeant):
                    await self.ask(ids, kind="cached")
                    return
                await asyncio.sleep(0.2)


async def measure(options: argparse.Namespace) -> dict[str, list[Timed]]:
    """Times of each kind, by round."""
    rng = random.Random(options.seed)
    env = {"INFERFLUX_GATEWAY_ANSWER_CACHE_BYTES": str(64 << 20)}
    times: dict[str, list[Timed]] = {kind: [] for kind in KINDS}

    def new_prompt() -> list[int]:
        return [rng.choice(_IDS) for _ in range(options.prompt_tokens)]

    async with (
        Stack(StackOptions(service_env={"gateway": env})) as stack,
        grpc_client.channel(stack.endpoint) as channel,
    ):
        asker = Asker(stack, channel, options.max_tokens)
        known = new_prompt()
        await asker.until_kept(known)
        for number in range(_WARM_UP_ROUNDS + options.rounds):
            await asyncio.sleep(0.05)  # what was missed is kept, and all processes are idle
            missed = new_prompt()
            prompts = {"computed": new_prompt(), "missed": missed, "cached": known}
            for kind in rng.sample(KINDS, len(KINDS)):
                timed = await asker.ask(prompts[kind], kind=kind)
                if number >= _WARM_UP_ROUNDS:
                    times[kind].append(timed)
            known = missed
    return times


def show(times: dict[str, list[Timed]]) -> Table:
    """Milliseconds, and ratios to what is computed."""
    table = Table("", "first token, ms", "÷ computed", "whole answer, ms", "÷ computed")
    columns = {kind: ([t.first_s for t in each], [t.whole_s for t in each]) for kind, each in times.items()}
    for kind, both in columns.items():
        cells = []
        for values, base in zip(both, columns["computed"], strict=True):
            low, middle, high = (1000 * q for q in statistics.quantiles(values, n=4))
            ratio = statistics.median(values) / statistics.median(base)
            cells += [f"{middle:.2f} ({low:.2f}-{high:.2f})", f"{ratio:.3f}"]
        table.add_row(kind, *cells)
    return table


def added_ms(times: dict[str, list[Timed]]) -> float:
    """What a look-up adds to the time to the first token: the median over rounds."""
    pairs = zip(times["missed"], times["computed"], strict=True)
    return 1000 * statistics.median(missed.first_s - computed.first_s for missed, computed in pairs)


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=positive, default=100)
    parser.add_argument("--prompt-tokens", type=positive, default=256)
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser, "all times")
    return parser.parse_args()


def main() -> None:
    options = parse()
    times = asyncio.run(measure(options))
    console = Console()
    console.print(show(times))
    console.print(f"a look-up adds {added_ms(times):.2f} ms to the first token")
    seconds = {kind: [[t.first_s, t.whole_s] for t in each] for kind, each in times.items()}
    write_json(options, seconds)


if __name__ == "__main__":
    main()
