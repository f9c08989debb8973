"""What several choices of one prompt cost, beside one: prompt tokens that are computed, and time.

    python -m benchmarks.choices [--n 4] [--rounds 20] [--prompt-tokens 512] [--workers 1] [--json FILE]

One stack answers one call at a time over HTTP, every call with a prompt of its own: one choice and `n`
choices in turn. `--no-prefix-cache` turns the workers' prefix cache off: each choice then computes the
prompt. Prints the prompt tokens that the choices of a call compute, and the median time of a call with its
quartiles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path

from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls.audit.reading import LineReader

from .command_line import add_json, make_parser, positive, write_json

# Token ids that are ordinary text in the demo model.
_IDS = range(300, 1800)
_WARM_UP_ROUNDS = 3
_AUDIT_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of all calls with `n` choices.

    Attributes:
        computed: prompt tokens that were computed, per call.
        calls_s: seconds of each call.
    """

    n: int
    computed: float
    calls_s: list[float]


class Caller:
    """Calls a stack, and reads what its requests computed off the gateway's audit lines."""

    def __init__(self, stack: Stack, options: argparse.Namespace) -> None:
        self._stack, self._options = stack, options
        self._random = random.Random(options.seed)
        self._calls_s: dict[int, list[float]] = {}
        self._ids: dict[int, list[str]] = {}

    async def call(self, n: int, number: int, *, is_counted: bool) -> None:
        request_id = f"choices-{n}-{number}"
        body = {
            "model": self._stack.model_name,
            "prompt": [self._random.choice(_IDS) for _ in range(self._options.prompt_tokens)],
            "n": n,
            "max_tokens": self._options.max_tokens,
            "ignore_eos": True,
        }
        began_s = time.perf_counter()
        await asyncio.to_thread(self._post, request_id, json.dumps(body).encode())
        if is_counted:
            self._calls_s.setdefault(n, []).append(time.perf_counter() - began_s)
            ids = [request_id, *(f"{request_id}-{i}" for i in range(1, n))]
            self._ids.setdefault(n, []).extend(ids)

    def _post(self, request_id: str, body: bytes) -> None:
        headers = {"authorization": f"Bearer {self._stack.api_key}", "x-request-id": request_id}
        connection = http.client.HTTPConnection(self._stack.http_url.removeprefix("http://"), timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        if answer.status != HTTPStatus.OK:
            raise RuntimeError(f"{answer.status}: {text}")

    async def figures(self) -> list[Figures]:
        """What was counted."""
        wanted = {each for ids in self._ids.values() for each in ids}
        async with asyncio.timeout(_AUDIT_WAIT_S):
            while True:
                computed = self._computed()
                if wanted <= computed.keys():
                    break
                await asyncio.sleep(0.1)
        return [
            Figures(n, sum(computed[each] for each in self._ids[n]) / len(calls_s), calls_s)
            for n, calls_s in self._calls_s.items()
        ]

    def _computed(self) -> dict[str, int]:
        """Prompt tokens that each request computed, by its id."""
        lines = LineReader([self._stack.state_dir.path / "audit"]).new_lines()
        return {
            line["request_id"]: line["prompt_tokens"] - line["cached_prompt_tokens"]
            for line in lines
            if "prompt_tokens" in line
        }


async def measure(options: argparse.Namespace) -> list[Figures]:
    """One choice, and several."""
    env = {"worker": {"INFERFLUX_WORKER_PREFIX_CACHE": str(not options.no_prefix_cache).lower()}}
    stack_options = StackOptions(
        model=options.model_file, workers=options.workers, service_env=env, http_port=0
    )
    async with Stack(stack_options) as stack:
        caller = Caller(stack, options)
        for number in range(_WARM_UP_ROUNDS + options.rounds):
            for n in (1, options.n):
                await caller.call(n, number, is_counted=number >= _WARM_UP_ROUNDS)
        return await caller.figures()


def show(figures: list[Figures]) -> Table:
    table = Table("choices", "prompt tokens computed", "ms, quartiles", "÷ one choice")
    one = statistics.median(figures[0].calls_s)
    for each in figures:
        low, middle, high = (1000 * q for q in statistics.quantiles(each.calls_s, n=4))
        times = f"{middle:.1f} ({low:.1f}-{high:.1f})"
        table.add_row(str(each.n), f"{each.computed:.1f}", times, f"{middle / one / 1000:.2f}")
    return table


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--n", type=positive, default=4, help="choices of a call (default: 4)")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--prompt-tokens", type=positive, default=512)
    parser.add_argument("--max-tokens", type=positive, default=32)
    parser.add_argument("--workers", type=positive, default=1)
    parser.add_argument("--no-prefix-cache", action="store_true")
    parser.add_argument("--model-file", type=Path, help="GGUF to serve; the demo model by default")
    parser.add_argument("--seed", type=int, default=1)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    figures = asyncio.run(measure(options))
    Console().print(show(figures))
    write_json(options, [asdict(each) for each in figures])


if __name__ == "__main__":
    main()
