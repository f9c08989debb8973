"""Conversations over a fleet: is what was said computed once, and do workers share the load?

    python -m benchmarks.prefix_conversations [--workers 2] [--conversations 40] [--turns 6] [--json FILE]

Real processes. Each turn sends all that was said, and a question of its own; its answer is part of the next
turn's prompt. The next turn of a conversation waits until those of others that came before it have begun.

Prints the prompt tokens that were computed over the new ones of each turn, and the tokens that each worker
computed, prompts and answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
from rich.console import Console

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common import grpc_client
from inferflux.v1 import inference_pb2_grpc

from .command_line import positive
from .grpc_target import generate_request

# Token ids that are ordinary text in the demo and the bench model.
_IDS = range(300, 1800)
_FIRST_TOKENS = (100, 400)
_QUESTION_TOKENS = (40, 120)
_ANSWER_TOKENS = (16, 64)


class Failed(Exception):
    """A turn was not answered."""


@dataclass(slots=True)
class Conversation:
    """What was said, and how often it was asked."""

    said: list[int]
    turns: int = 0


@dataclass(slots=True)
class Found:
    """Tokens of all turns.

    Attributes:
        by_worker: that each worker computed, by its id.
        moved: turns that went to another worker than the one before.
    """

    new: int = 0
    computed: int = 0
    moved: int = 0
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
        async for response in self._stub.Generate(request, metadata=metadata):
            chunk = response.chunk
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
        self.found.moved += self._workers.get(number, worker) != worker
        self._workers[number] = worker
        conversation.said, conversation.turns = prompt + answer, conversation.turns + 1


async def measure(options: argparse.Namespace) -> Found:
    scheduler = {}
    if options.lookup_limit_s:
        scheduler["INFERFLUX_SCHEDULER_PREFIX_LOOKUP_LIMIT_S"] = str(options.lookup_limit_s)
    stack_options = StackOptions(
        model=options.model_file,
        workers=options.workers,
        slots=options.slots,
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
    return fleet.found


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
    parser.add_argument("--lookup-limit-s", type=float, help="how long the scheduler waits for the index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    found = asyncio.run(measure(options))
    figures = {
        "computed_over_new": round(found.computed_ratio, 3),
        "load_most_over_least": round(found.load_ratio(options.workers), 3),
        "turns_that_moved": found.moved,
        "new_tokens": found.new,
        "computed_by_worker": dict(found.by_worker),
    }
    Console().print_json(json.dumps(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
