"""How soon a request begins whose prompt is in the KV cache, in host memory, on disk, or nowhere.

    python -m benchmarks.kv_tiers [--model-file FILE] [--tokens 1000 3000] [--rounds 5] [--json FILE]

Engines in this process share one loaded model, with one sequence each. A request is computed, preempted,
evicted by another, and cancelled: what it leaves serves the next one, whose prompt has one token more. In
each round the ways follow in turn. Prints the median milliseconds from a request's start to its first token:

    device      the preempted request resumes, its cells being in the KV cache still
    host        its state is copied in
    disk        its file is read and checked, then its state is copied in; the page cache has the file
    recomputed  all is prefilled

An asterisk says that the engine chose to recompute, having measured both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from inferflux.v1 import engine_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.plan.sequence import Sequence
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.tiers.disk import Disk
from inferflux.worker.engine.tiers.tiers import Tiers

from .command_line import add_json, make_parser, positive, write_json

_BYTES = 8 << 30
_WAYS = ("device", "host", "disk", "recomputed")
_ROOM = 512


class Requests:
    """Requests of one engine, one after the other."""

    def __init__(self, backend: Backend, tiers: Tiers[Sequence], disk: Disk | None = None) -> None:
        self._engine = Engine(backend, worker_id="bench", max_itl_factor=5.0, step_limit_s=0.2, tiers=tiers)
        self._disk = disk
        self._n = 0
        self.restored = 0

    def begin(self, prompt: list[int], *, max_tokens: int = 64) -> tuple[str, float]:
        """(key, seconds until it had its first token) of a request, which goes on."""
        self._n += 1
        item = worker_pb2.BatchItem()
        request = item.request
        request.tenant, request.request_id, request.epoch = "bench", f"r{self._n}", 1
        request.prompt_token_ids.extend(prompt)
        request.params.max_tokens = max_tokens
        request.params.ignore_eos = True
        began = time.perf_counter()
        self._engine.start(item)
        self._until_token()
        return f"bench.r{self._n}", time.perf_counter() - began

    def park(self, key: str) -> None:
        self._engine.deschedule(engine_pb2.EngineDeschedule(key=key, epoch=1))
        self._engine.take_report()

    def resume(self, key: str) -> float:
        """Seconds until a parked request had its next token."""
        began = time.perf_counter()
        self._engine.resume(engine_pb2.EngineResume(key=key, epoch=1, run=1))
        self._until_token()
        return time.perf_counter() - began

    def end(self, key: str) -> None:
        self._engine.cancel(key, is_silent=True)

    def leave_behind(self, prompt: list[int]) -> None:
        """Have a prompt computed, and its state wherever it goes from the KV cache."""
        key, _ = self.begin(prompt)
        self.park(key)
        other, _ = self.begin([1, 2, 3])
        self.end(other)
        self.end(key)
        if self._disk is not None:
            self._disk.flush()

    def close(self) -> None:
        self._engine.close()

    def _until_token(self) -> None:
        while True:
            time.sleep(self._engine.idle_s() or 0)
            self._engine.step()
            report = self._engine.take_report()
            if report is None:
                continue
            self.restored += report.step.stats.host.hits + report.step.stats.disk.hits
            chunks = (tokens_pb2.TokenChunk.FromString(e.chunk) for e in report.step.emissions)
            if any(chunk.token_ids for chunk in chunks):
                return


def prompt_of(tokens: int, kind: int, vocabulary: int) -> list[int]:
    """Different ones for each kind, from the first token on."""
    return [(kind * 7919 + i * 31) % (vocabulary - 10) + 5 for i in range(tokens)]


def measure(path: Path, tokens: int, rounds: int) -> tuple[dict[str, list[float]], set[str]]:
    """(seconds of each way in each round, the ways that recomputed although they had a choice)."""
    config = engine_pb2.EngineConfig(
        model_path=str(path),
        slots=1,
        sequences=1,
        kv_cells=2 * tokens + _ROOM,
        context_length=tokens + _ROOM,
        batch_tokens=2048,
        flash_attention=True,
        gpu_layers=-1,
    )
    backend = Backend(config)
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    recomputed = set()
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder), backend.identity)
        of = {
            "device": Requests(backend, Tiers.off()),
            "host": Requests(backend, Tiers(backend.identity, host_bytes=_BYTES)),
            "disk": Requests(
                backend, Tiers(backend.identity, host_bytes=0, disk=disk, disk_bytes=_BYTES), disk
            ),
        }
        of["recomputed"] = of["device"]
        for turn in range(rounds):
            for way, requests in of.items():
                prompt = prompt_of(tokens, turn * len(_WAYS) + _WAYS.index(way), backend.vocab.size)
                if way == "device":
                    key, _ = requests.begin(prompt)
                    requests.park(key)
                    found[way].append(requests.resume(key))
                    requests.end(key)
                    continue
                if way != "recomputed":
                    requests.leave_behind(prompt)
                before = requests.restored
                key, seconds = requests.begin([*prompt, 5])
                found[way].append(seconds)
                requests.end(key)
                if way != "recomputed" and requests.restored == before:
                    recomputed.add(way)
        for requests in of.values():
            requests.close()
    return found, recomputed


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/inferflux-demo.gguf"))
    parser.add_argument("--tokens", type=positive, nargs="+", default=[1000, 3000])
    parser.add_argument("--rounds", type=positive, default=5)
    add_json(parser)
    return parser.parse_args()


def main() -> None:
    options = parse()
    table = Table("tokens", *_WAYS, title="ms to the first token, median")
    figures: dict[str, dict[str, list[float]]] = {}
    for tokens in options.tokens:
        found, recomputed = measure(options.model_file, tokens, options.rounds)
        figures[str(tokens)] = found
        cells = [
            f"{statistics.median(found[way]) * 1000:.1f}{'*' if way in recomputed else ''}" for way in _WAYS
        ]
        table.add_row(str(tokens), *cells)
    Console().print(table)
    write_json(options, figures)


if __name__ == "__main__":
    main()
