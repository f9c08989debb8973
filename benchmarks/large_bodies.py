"""How long large HTTP bodies hold up the gateway's other clients.

    python -m benchmarks.large_bodies [--rounds 5] [--url URL --model NAME] [--json FILE]

One client asks /healthz without a pause. Another one sends bodies of up to 15 MiB, one after the other: some
are refused before they are parsed, some are the most that is taken. Prints for each kind its status, and the
longest time that /healthz took meanwhile: the median over the rounds. "nothing" is the same without a body.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rich.console import Console
from rich.table import Table

from benchmarks.command_line import add_json, make_parser, positive, write_json
from benchmarks.lab import DEMO_MODEL, Layout, options_of
from inferflux.cli.stack import Stack

_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_QUIET_S = 0.3


def bodies(model: str) -> Mapping[str, tuple[str, bytes]]:
    """Path and body of each kind. No answer is computed: each asks for what is refused in the end."""
    head = f'{{"model": "{model}", "temperature": -1, '.encode()
    message = b'{"role": "user", "content": "a"}'
    return {
        "a text of 15 MiB": (
            _CHAT,
            head + b'"messages": [{"role": "user", "content": "' + b"a" * (15 << 20) + b'"}]}',
        ),
        "7,000,000 token ids": (_COMPLETIONS, head + b'"prompt": [' + b"1," * 7_000_000 + b"1]}"),
        "400,000 messages": (_CHAT, head + b'"messages": [' + (message + b",") * 400_000 + message + b"]}"),
        "1,000,000 biases": (
            _CHAT,
            head + b'"logit_bias": {' + b",".join(b'"%d":1' % i for i in range(1_000_000)) + b"}}",
        ),
        "260,000 token ids": (_COMPLETIONS, head + b'"prompt": [' + b"1," * 260_000 + b"1]}"),
        "10,000 messages": (_CHAT, head + b'"messages": [' + (message + b",") * 9_999 + message + b"]}"),
        "65,000 ignored names": (
            _CHAT,
            head + b'"messages": [], "x": {' + b",".join(b'"%d":1' % i for i in range(65_000)) + b"}}",
        ),
    }


class Prober:
    """Asks /healthz in a thread, again and again, while it is entered."""

    def __init__(self, host: str, port: int) -> None:
        self.longest_ms = 0.0
        self._connection = HTTPConnection(host, port, timeout=60)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on)

    def __enter__(self) -> Self:
        self._ask()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._connection.close()

    def _ask(self) -> float:
        began = time.perf_counter()
        self._connection.request("GET", "/healthz")
        self._connection.getresponse().read()
        return (time.perf_counter() - began) * 1e3

    def _ask_on(self) -> None:
        while not self._is_over.is_set():
            self.longest_ms = max(self.longest_ms, self._ask())


def longest_ms(host: str, port: int, key: str, path: str = "", body: bytes = b"") -> tuple[float, int]:
    """The longest answer of /healthz while a body is sent and refused, in ms, and the status of that."""
    status = 0
    with Prober(host, port) as prober:
        time.sleep(_QUIET_S / 2)
        if path:
            connection = HTTPConnection(host, port, timeout=60)
            try:
                connection.request("POST", path, body, {"authorization": f"Bearer {key}"})
                status = connection.getresponse().status
            except (BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
                status = 413
            finally:
                connection.close()
        time.sleep(_QUIET_S / 2)
    return prober.longest_ms, status


def measure(url: str, model: str, key: str, rounds: int) -> list[dict[str, Any]]:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    kinds = {"nothing": ("", b""), **bodies(model)}
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, (path, body) in kinds.items():
            found[name].append(longest_ms(host, port, key, path, body))
    return [
        {
            "kind": name,
            "mib": round(len(kinds[name][1]) / (1 << 20), 1),
            "status": runs[-1][1],
            "longest_ms": statistics.median(took for took, _ in runs),
        }
        for name, runs in found.items()
    ]


async def _on_a_stack(rounds: int) -> list[dict[str, Any]]:
    async with Stack(options_of(DEMO_MODEL, Layout.ONE_WORKER)) as stack:
        return await asyncio.to_thread(measure, stack.http_url, stack.model_name, stack.api_key, rounds)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--url", default="", help="of a gateway that runs; default: a stack of its own")
    parser.add_argument("--model", default="inferflux-demo")
    add_json(parser)
    options = parser.parse_args()
    if options.url:
        key = os.environ.get("INFERFLUX_API_KEY", "")
        found = measure(options.url, options.model, key, options.rounds)
    else:
        found = asyncio.run(_on_a_stack(options.rounds))
    table = Table("body", "MiB", "status", "longest, ms")
    for row in found:
        table.add_row(row["kind"], f"{row['mib']}", str(row["status"] or ""), f"{row['longest_ms']:.1f}")
    Console().print(table)
    write_json(options, found)


if __name__ == "__main__":
    main()
