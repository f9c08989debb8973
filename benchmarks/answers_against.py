"""Ask this checkout and another one of InferFlux the same prompts, and count the answers that differ.

    git worktree add ../before HEAD~20 && make -C ../before .venv/.runtime
    python -m benchmarks.answers_against ../before --prompts 500

Each prompt is answered greedily and with a seed (temperature 0.8, top-k 40, top-p 0.95, penalties, a stop),
one after the other and deterministic: no answer depends on how steps are cut. Exit code 1 if any
differs, 2 if they could not be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.against import program_of, stack_of
from benchmarks.load.command_line import add_json, make_parser, positive, write_json
from benchmarks.load.prompts import LogNormal, TextPrompts
from benchmarks.rows.lab import DEMO_MODEL, LabError
from benchmarks.rows.peers import ROOT
from inferflux.cli.reach.state_dir import StackState
from inferflux.client import AsyncClient
from inferflux.client.requests import Options

_CHARACTERS = LogNormal(20, 600)
_SEEDED = Options(
    temperature=0.8, top_k=40, top_p=0.95, frequency_penalty=0.3, repeat_penalty=1.1, stop=["the the"]
)
WAYS = ("greedy", "seeded")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("other", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--prompts", type=positive, default=500, metavar="N")
    parser.add_argument("--tokens", type=positive, default=24, help="of each answer, at most")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="default: the demo model")
    add_json(parser)
    return parser.parse_args(arguments)


def requests(prompts: int, tokens: int) -> Iterator[tuple[str, str, Options]]:
    """(way, prompt, options) of each request: every prompt in every way."""
    texts = TextPrompts(_CHARACTERS)
    for i in range(prompts):
        yield "greedy", texts[i], Options(temperature=0.0, max_tokens=tokens, deterministic=True)
        yield "seeded", texts[i], Options(**_SEEDED, seed=i, max_tokens=tokens, deterministic=True)


async def answers(
    name: str, stack: StackState, options: argparse.Namespace, progress: Progress
) -> list[list[int]]:
    """Token ids of each answer of a stack, in the order of `requests`; the bar of progress has `name`."""
    asked = list(requests(options.prompts, options.tokens))
    found = []
    async with AsyncClient(stack.endpoint, api_key=stack.api_key) as client:
        for _way, prompt, of_request in progress.track(asked, description=name):
            stream = client.generate(prompt, model=stack.model, skip_answer_cache=True, **of_request)
            async for _chunk in stream:
                pass
            found.append(stream.token_ids)
    return found


async def measure(options: argparse.Namespace, console: Console) -> dict[str, int]:
    """Number of answers that differ, by how they were asked."""
    found, model = [], options.model.resolve()
    program_of(options.other)
    with Progress(console=console) as progress:
        for checkout in (ROOT, options.other.resolve()):
            async with stack_of(checkout, model) as stack:
                found.append(await answers(str(checkout), stack, options, progress))
    differing = dict.fromkeys(WAYS, 0)
    for (way, _prompt, _options), mine, other in zip(
        requests(options.prompts, options.tokens), *found, strict=True
    ):
        differing[way] += mine != other
    return differing


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    options, console = parse(arguments), Console()
    try:
        differing = asyncio.run(measure(options, console))
    except (LabError, TimeoutError) as error:
        console.print(str(error) or "a stack was not up in time", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130
    for way, n in differing.items():
        console.print(f"{way}: {n} of {options.prompts} answers differ")
    write_json(options, {"prompts": options.prompts, "differing": differing})
    return 1 if any(differing.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
