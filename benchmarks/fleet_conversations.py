"""Conversations over a fleet: is what was said computed once, and do workers share the load?

    python -m benchmarks.fleet_conversations [--workers 2] [--conversations 40] [--turns 6] [--json FILE]

Real processes. Each turn sends all that was said, and a question of its own; its answer is part of the next
turn's prompt. The next turn of a conversation waits until those of others that came before it have begun.
Workers divide the cores: on two cores each of two has one thread.

Prints the prompt tokens that were computed over the new ones of each turn, and the tokens that each worker
computed, prompts and answers. And what becomes of turns: those that went to another worker, those that
stayed and found less than was said before, and why, as far as metrics tell.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
from rich.console import Console

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.common.contract.address import split
from inferflux.v1 import inference_pb2_grpc

from .load.command_line import positive
from .load.grpc_target import generate_request
from .load.stats import percentile

# Token ids that are ordinary text in the demo and the bench model.
_IDS = range(300, 1800)
_FIRST_TOKENS = (100, 400)
_QUESTION_TOKENS = (40, 120)
_ANSWER_TOKENS = (16, 64)
# A turn may find up to this many tokens less than was said before: blocks, and the last token of an answer.
_SPARE_TOKENS = 32
# What the processes count, and what it is called in the figures.
_COUNTERS = {
    "scheduler": ("prefix_index_lookups_total", "scheduler_prefix_waits_total"),
    "worker": (
        "prefix_cache_evictions_total",
        "kv_tier_hits_total",
        "kv_tier_evictions_total",
        "kv_cache_compactions_total",
    ),
}
_COUNTER = re.compile(r"^inferflux_(\w+_total)(?:\{([^}]*)\})? ([-+.\deE]+)$", re.MULTILINE)


class Failed(Exception):
    """A turn was not answered."""


@dataclass(slots=True)
class Conversation:
    """The tokens that were said, and how often it was asked."""

    said: list[int]
    turns: int = 0


@dataclass(slots=True)
class Found:
    """Tokens of all turns.

    Attributes:
        by_worker: that each worker computed, by its id.
        moved: turns that went to another worker than the one before.
        again_moved, again_stayed: tokens that were computed before, of turns that moved and of others.
        evicted: turns that stayed and found less than was said before.
        first_token_s: of turns after the first.
    """

    new: int = 0
    computed: int = 0
    moved: int = 0
    again_moved: int = 0
    again_stayed: int = 0
    evicted: int = 0
    first_token_s: list[float] = field(default_factory=list)
    by_worker: Counter[str] = field(default_factory=Counter)

    @property
    def computed_ratio(self) -> float:
        return self.computed / self.new

    def load_ratio(self, workers: int) -> float:
        """The most over the least that one of the workers computed; infinite where one had nothing."""
        if len(self.by_worker) < workers:
            return math.inf
        return max(self.by_worker.values()) / min(self.by_worker.values())


class Fleet:
    """Asks a stack, and counts what it computed."""

    def __init__(self, stack: Stack, channel: grpc.aio.Channel, rng: random.Random) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._stack, self._rng = stack, rng
        self._workers: dict[int, str] = {}
        self.found = Found()

    def tokens(self, bounds: tuple[int, int]) -> list[int]:
        return self._rng.choices(_IDS, k=self._rng.randint(*bounds))

    async def ask(self, number: int, conversation: Conversation) -> None:
        """The next turn of a conversation.

        Raises:
            Failed: it was not answered.
        """
        question = self.tokens(_QUESTION_TOKENS if conversation.turns else _FIRST_TOKENS)
        prompt, answer = conversation.said + question, list[int]()
        request = generate_request(self._stack.model_name, prompt, self._rng.randint(*_ANSWER_TOKENS))
        metadata = grpc_client.outgoing(api_key=self._stack.api_key)
        worker, usage = "", None
        began_s = time.perf_counter()
        async for response in self._stub.Generate(request, metadata=metadata):
            chunk = response.chunk
            if chunk.token_ids and not answer and conversation.turns:
                self.found.first_token_s.append(time.perf_counter() - began_s)
            answer += chunk.token_ids
            worker = chunk.started.worker_id or worker
            if chunk.HasField("failed"):
                raise Failed(chunk.failed.message)
            if chunk.HasField("finished"):
                usage = chunk.finished.usage
        if usage is None:
            raise Failed("a stream ended without an end")
        computed = usage.prompt_tokens - usage.cached_prompt_tokens
        self.found.new += len(question)
        self.found.computed += computed
        self.found.by_worker[worker] += computed + usage.completion_tokens
        self._count_again(computed - len(question), has_moved=self._workers.get(number, worker) != worker)
        self._workers[number] = worker
        conversation.said, conversation.turns = prompt + answer, conversation.turns + 1

    def _count_again(self, again: int, *, has_moved: bool) -> None:
        if has_moved:
            self.found.moved += 1
            self.found.again_moved += again
        else:
            self.found.again_stayed += again
            self.found.evicted += again > _SPARE_TOKENS


async def counters(stack: Stack) -> dict[str, float]:
    """Counters of the stack's processes that bear on prefixes, by process and labels; no zeros."""
    found = {}
    for process, address in stack.metrics.items():
        names = _COUNTERS.get(process.split("-")[0], ())
        host, port = split(address, "metrics")
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = (await reader.read()).decode()
        finally:
            writer.close()
        for name, labels, value in _COUNTER.findall(text):
            if name in names and float(value):
                told = ",".join(part for part in labels.split(",") if not part.startswith("model="))
                found[f"{process} {name.removesuffix('_total')} {told}".strip()] = float(value)
    return found


async def measure(options: argparse.Namespace) -> tuple[Found, dict[str, float]]:
    """Return what was found, and what the processes counted."""
    scheduler = {"INFERFLUX_SCHEDULER_PREFIX_WAIT_S": str(options.wait_s)}
    if options.lookup_limit_s:
        scheduler["INFERFLUX_SCHEDULER_PREFIX_LOOKUP_LIMIT_S"] = str(options.lookup_limit_s)
    stack_options = StackOptions(
        model=options.model_file,
        workers=options.workers,
        slots=options.slots,
        threads=options.threads,
        kv_cells=options.cells,
        service_env={"scheduler": scheduler},
    )
    async with Stack(stack_options) as stack, grpc_client.channel(stack.endpoint) as channel:
        fleet = Fleet(stack, channel, random.Random(options.seed))
        waiting: asyncio.Queue[tuple[int, Conversation]] = asyncio.Queue()
        for number in range(options.conversations):
            waiting.put_nowait((number, Conversation([])))

        async def ask_in_turn() -> None:
            while not waiting.empty():
                number, conversation = waiting.get_nowait()
                await fleet.ask(number, conversation)
                if conversation.turns < options.turns:
                    waiting.put_nowait((number, conversation))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(options.concurrency, options.conversations)):
                group.create_task(ask_in_turn())
        return fleet.found, await counters(stack)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--slots", type=positive, default=8, help="of each worker")
    parser.add_argument("--cells", type=positive, default=16384, help="of each worker's KV cache")
    parser.add_argument("--conversations", type=positive, default=40)
    parser.add_argument("--turns", type=positive, default=6)
    parser.add_argument("--concurrency", type=positive, default=12, help="turns at a time")
    parser.add_argument("--threads", type=int, default=0, help="of each engine; 0: its part of the cores")
    parser.add_argument(
        "--wait-s", type=float, default=5.0, help="longest wait for the worker that has a prefix; 0: none"
    )
    parser.add_argument("--lookup-limit-s", type=float, help="how long the scheduler waits for the index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    began_s = time.perf_counter()
    found, counted = asyncio.run(measure(options))
    figures = {
        "computed_over_new": round(found.computed_ratio, 3),
        "load_most_over_least": round(found.load_ratio(options.workers), 3),
        "turns_that_moved": found.moved,
        "computed_again_by_those": found.again_moved,
        "turns_that_stayed_and_found_less": found.evicted,
        "computed_again_by_those_that_stayed": found.again_stayed,
        "first_token_p50_s": round(percentile(sorted(found.first_token_s), 0.5), 3),
        "first_token_p90_s": round(percentile(sorted(found.first_token_s), 0.9), 3),
        "took_s": round(time.perf_counter() - began_s, 1),
        "new_tokens": found.new,
        "computed_by_worker": dict(found.by_worker),
        "counted": counted,
    }
    Console().print_json(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
