"""The server to measure, as every script here takes it on its command line."""

from __future__ import annotations

import argparse
import os

from benchmarks.load.command_line import add_json

from .grpc_target import GrpcTarget
from .lean_grpc_target import LeanGrpcTarget
from .loops import Target
from .prompts import middle_of
from .sampling import GREEDY, Sampling
from .sse_target import SseTarget


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, what it serves, and where the figures go."""
    parser.add_argument("--target", choices=("grpc", "openai-sse"), default="grpc")
    parser.add_argument(
        "--client",
        choices=("grpcio", "lean"),
        default="grpcio",
        help="for gRPC: the library services use, or one of ours that costs as little as the HTTP client",
    )
    parser.add_argument("--url", default="127.0.0.1:50051", help="host:port, or http://host:port")
    parser.add_argument("--model", required=True, help="the name it is served under")
    parser.add_argument("--api-key", default=os.environ.get("INFERFLUX_API_KEY", ""))
    parser.add_argument("--seed", type=int, default=0, help="of the prompts and of the moments they are sent")
    parser.add_argument("--token-range", type=span, help="LOW:HIGH, instead of the middle of the vocabulary")
    parser.add_argument("--temperature", type=_temperature, default=0.0, help="default: 0, which is greedy")
    parser.add_argument("--top-k", type=int, default=GREEDY.top_k, help="default: %(default)s")
    parser.add_argument("--top-p", type=float, default=GREEDY.top_p, help="default: %(default)s")
    parser.add_argument("--limit-s", type=float, default=300.0, help="longest time of one request")
    parser.add_argument("--pin", type=int, help="run on this core alone")
    add_json(parser)


def open_target(options: argparse.Namespace) -> Target:
    """The kind of server asked for. Needs a running event loop."""
    grpc = LeanGrpcTarget if options.client == "lean" else GrpcTarget
    kind = grpc if options.target == "grpc" else SseTarget
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    return kind(options.url, model=options.model, api_key=options.api_key, sampling=sampling)


async def token_range(options: argparse.Namespace, target: Target) -> tuple[int, int]:
    """Token ids prompts are drawn from: those asked for, or the middle of the served vocabulary."""
    if options.token_range:
        low, high = options.token_range
        return low, high
    return middle_of(await target.vocabulary_size())


def _temperature(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError("must be at least 0")
    return value


def span(text: str) -> tuple[int, int]:
    """LOW:HIGH, whole numbers of at least 0, for argparse."""
    low, colon, high = text.partition(":")
    if not (colon and low.isdigit() and high.isdigit() and int(low) < int(high)):
        raise argparse.ArgumentTypeError("must be LOW:HIGH with LOW below HIGH")
    return int(low), int(high)
