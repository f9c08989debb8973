"""Does the time to the first token tell a tenant what another tenant has asked?

    python -m benchmarks.prefix_timing [--prompts 150] [--prompt-tokens 400] [--json FILE]

One tenant asks a prompt. Another one then times the first token of that prompt and of one that was never
asked, in random order, one request at a time, on an idle stack. It does so with keys of the default
cache scope, the tenant's own, and as a control with keys that share a scope.

Prints the area under the curve (AUC): how often an asked prompt is sooner than one that was not. 0.5 tells
nothing, 1 tells all. Beside it the difference of the medians in milliseconds, each with its interval of 95 %
by bootstrap.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from inferflux.cli.stack import Stack, StackOptions
from inferflux.common.calls import grpc_client
from inferflux.v1 import policy_pb2, policy_pb2_grpc

from .command_line import add_json, make_parser, positive, write_json
from .grpc_target import GrpcTarget
from .prefix_tenants import ask

# Token ids that are ordinary text in the demo and the bench model.
_IDS = range(300, 1800)
_RESAMPLED = 2000
_SHARED = "everyone"

Samples = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the times of asked and of fresh prompts tell. Pairs are the interval of 95 %."""

    auc: float
    auc_interval: tuple[float, float]
    sooner_ms: float
    sooner_interval_ms: tuple[float, float]


def auc(asked: Samples, fresh: Samples) -> float:
    """How often an asked prompt is sooner than a fresh one; a tie counts half."""
    sooner = asked[:, None] < fresh[None, :]
    return float(sooner.mean() + (asked[:, None] == fresh[None, :]).mean() / 2)


def verdict(asked: Samples, fresh: Samples, seed: int = 0) -> Verdict:
    rng = np.random.default_rng(seed)
    areas, differences = [], []
    for _ in range(_RESAMPLED):
        some_asked, some_fresh = rng.choice(asked, asked.size), rng.choice(fresh, fresh.size)
        areas.append(auc(some_asked, some_fresh))
        differences.append(float(np.median(some_fresh) - np.median(some_asked)))
    return Verdict(
        auc(asked, fresh),
        _interval(areas),
        float(np.median(fresh) - np.median(asked)),
        _interval(differences),
    )


def _interval(values: list[float]) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


class Pair:
    """Two tenants that use the same stack."""

    def __init__(self, victim: GrpcTarget, attacker: GrpcTarget) -> None:
        self.victim, self.attacker = victim, attacker
        self.asked_ms: list[float] = []
        self.fresh_ms: list[float] = []

    @classmethod
    async def of(cls, stack: Stack, name: str, cache_scope: str) -> Pair:
        keys = [await _key(stack, f"{name}-{role}", cache_scope) for role in ("victim", "attacker")]
        targets = [GrpcTarget(stack.endpoint, model=stack.model_name, api_key=key) for key in keys]
        return cls(*targets)

    async def time(self, asked: list[int], fresh: list[int], rng: random.Random) -> None:
        """Have one prompt asked, and time it and another."""
        await ask(self.victim, asked)
        trials = [(asked, self.asked_ms), (fresh, self.fresh_ms)]
        rng.shuffle(trials)
        for prompt, times in trials:
            times.append(await ask(self.attacker, prompt))

    async def close(self) -> None:
        await self.victim.close()
        await self.attacker.close()


async def _key(stack: Stack, tenant: str, cache_scope: str) -> str:
    address = stack.processes["policy"].spec.env["INFERFLUX_POLICY_LISTEN"]
    request = policy_pb2.CreateApiKeyRequest(
        tenant=tenant, name="benchmark", scopes=["inference"], cache_scope=cache_scope
    )
    async with grpc_client.channel(address) as channel:
        stub = policy_pb2_grpc.PolicyServiceStub(channel)
        made = await stub.CreateApiKey(request, metadata=grpc_client.outgoing(api_key=stack.api_key))
    return str(made.secret)


async def measure(options: argparse.Namespace) -> dict[str, Pair]:
    rng = random.Random(options.seed)

    def prompt() -> list[int]:
        return rng.choices(_IDS, k=options.prompt_tokens)

    async with Stack(StackOptions(model=options.model_file, slots=4)) as stack:
        pairs = {
            "each tenant's own (default)": await Pair.of(stack, "own", ""),
            "shared (control)": await Pair.of(stack, "shared", _SHARED),
        }
        for _ in range(3):  # the first requests of a process take longer
            await ask(pairs["shared (control)"].victim, prompt())
        for _ in range(options.prompts):
            for pair in pairs.values():
                await pair.time(prompt(), prompt(), rng)
        for pair in pairs.values():
            await pair.close()
    return pairs


def show(verdicts: dict[str, Verdict]) -> Table:
    table = Table("cache scope", "AUC", "95 %", "sooner by, ms", "95 %")
    for name, found in verdicts.items():
        cells = [f"{found.auc:.3f}", "{:.3f} to {:.3f}".format(*found.auc_interval)]
        cells += [f"{found.sooner_ms:.2f}", "{:.2f} to {:.2f}".format(*found.sooner_interval_ms)]
        table.add_row(name, *cells)
    return table


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--prompts", type=positive, default=150, help="of each kind and scope")
    parser.add_argument("--prompt-tokens", type=positive, default=400)
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser, "verdicts and times")
    return parser.parse_args()


def main() -> None:
    options = parse()
    pairs = asyncio.run(measure(options))
    verdicts = {name: verdict(np.array(p.asked_ms), np.array(p.fresh_ms)) for name, p in pairs.items()}
    Console().print(show(verdicts))
    times = {name: {"asked_ms": p.asked_ms, "fresh_ms": p.fresh_ms} for name, p in pairs.items()}
    found = {"verdicts": {name: asdict(v) for name, v in verdicts.items()}, "times": times}
    write_json(options, found)


if __name__ == "__main__":
    main()
