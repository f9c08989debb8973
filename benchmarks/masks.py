"""What constraints cost: the mask of a token, and constrained answers beside free ones.

    python -m benchmarks.masks [--model-file FILE] [--threads 1 2] [--rounds 3] [--json FILE]

First masks alone, of vocabularies of several sizes. They are made up of all bytes and the commonest pieces of
words in Python's own sources. Random answers to several schemas are walked through. For each token the mask
is computed, and applied to a row of logits. Prints microseconds of both, and of the vocabulary's reading.

Then an engine decodes 8 sequences, free and constrained in turn, each for as many tokens. Prints the tokens
per second of the fastest constrained round divided by those of the fastest free one.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
import sysconfig
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from rich.console import Console
from rich.table import Table

from inferflux.common.text.constraints.compiling import Compiler
from inferflux.v1 import engine_pb2, generation_pb2, tokens_pb2, worker_pb2
from inferflux.worker.engine.constraints.constraints import Constraints
from inferflux.worker.engine.llama.native import Backend
from inferflux.worker.engine.step.core import Engine
from inferflux.worker.engine.step.masks import MaskedRow, Masks
from inferflux.worker.engine.tiers.tiers import Tiers
from inferflux.worker.processes.engine_process import SPIN_COUNT

from .command_line import add_json, make_parser, positive, write_json

VOCABULARIES = (2048, 32_000, 128_256)
SEQUENCES = 8
_TEXT_BYTES = 12 << 20
_LONGEST_PIECE = 12
_WALKS = 3
_WALK_TOKENS = 150
_PROMPT = range(300, 364)

_TEXT = {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "records": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "id": {"type": "integer"},
                "name": _TEXT,
                "tags": {"type": "array", "items": _TEXT},
            },
            "required": ["id", "name", "tags"],
            "additionalProperties": False,
        },
        "minItems": 1000,
    },
    "formats": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "at": {"type": "string", "format": "date-time"},
                "level": {"enum": ["debug", "info", "warning", "error"]},
                "code": {"type": "string", "pattern": "^[A-Z]{3}-\\d{2,4}$"},
                "share": {"type": "number", "minimum": 0, "maximum": 1},
            },
            "required": ["at", "level", "code", "share"],
            "additionalProperties": False,
        },
        "minItems": 1000,
    },
    "any": {"type": "array", "minItems": 1000},
}


class MadeUpVocabulary:
    """Bytes, an end, and the commonest pieces: enough of a vocabulary for a compiler."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.tokens = [b"\xff<end>", *(bytes([i]) for i in range(256)), *pieces]
        self.size = len(self.tokens)
        self.eos_token_id, self.bos_token_id, self.special_token_ids = 0, None, [0]

    def __call__(self, text: bytes) -> list[int]:
        return [1 + byte for byte in text]

    def control_token(self, _text: str) -> int | None:
        return None


def common_pieces(n: int) -> list[bytes]:
    """The commonest beginnings and ends of words in Python's sources."""
    counts: Counter[str] = Counter()
    left = _TEXT_BYTES
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        left -= len(text)
        for word, times in Counter(re.findall(r" ?\w+|[^\w\s]+|\s+", text)).items():
            for length in range(2, min(len(word), _LONGEST_PIECE) + 1):
                counts[word[:length]] += times
                counts[word[-length:]] += times
        if left < 0:
            break
    return [piece.encode() for piece, _ in counts.most_common(n)]


def mask_figures(size: int, pieces: list[bytes]) -> dict[str, float]:
    """Microseconds of masks of one vocabulary, and milliseconds of reading it."""
    vocabulary = MadeUpVocabulary(pieces[: size - 257])
    began = time.perf_counter()
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=vocabulary.size, eos_token=0)
    reading_s = time.perf_counter() - began

    class Ready(Compiler):
        def read_vocabulary(self) -> LLTokenizer:
            return tokenizer

    compiler = Ready(vocabulary)  # type: ignore[arg-type]
    draw = np.random.default_rng(1)
    logits = draw.normal(0, 3, (1, vocabulary.size)).astype(np.float32)
    raw = logits.copy()
    masks = Masks()
    compile_us: list[float] = []
    fill_us: list[float] = []
    apply_us: list[float] = []
    for schema in SCHEMAS.values():
        wanted = generation_pb2.StructuredConstraint(json_schema=json.dumps(schema))
        began = time.perf_counter()
        compiled = compiler.compile(wanted)
        compile_us.append((time.perf_counter() - began) * 1e6)
        for _ in range(_WALKS):
            timed = _Timed(compiled.matcher.deep_copy(), fill_us)
            for _ in range(_WALK_TOKENS):
                logits[:] = raw
                began = time.perf_counter()
                with masks.applied(logits, [MaskedRow(0, timed, is_read_after=False)]):
                    apply_us.append((time.perf_counter() - began) * 1e6 - fill_us[-1])
                allowed = np.flatnonzero(np.isfinite(logits[0]))
                timed.accept(int(draw.choice(allowed)))
                if timed.is_over:
                    break
    return {
        "vocabulary": vocabulary.size,
        "reading_ms": reading_s * 1e3,
        "compile_us": statistics.median(compile_us),
        "mask_us_p50": float(np.percentile(fill_us, 50)),
        "mask_us_p99": float(np.percentile(fill_us, 99)),
        "apply_us_p50": float(np.percentile(apply_us, 50)),
    }


class _Timed:
    """A constraint that notes how long each of its masks takes."""

    is_ready = True
    error = ""

    def __init__(self, matcher: LLMatcher, times_us: list[float]) -> None:
        self._matcher = matcher
        self._times_us = times_us

    @property
    def is_over(self) -> bool:
        return bool(self._matcher.is_stopped())

    def fill(self, mask: Any) -> bool:
        began = time.perf_counter()
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._times_us.append((time.perf_counter() - began) * 1e6)
        return True

    def forced(self) -> list[int]:
        return []

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)

    def look_ahead(self, token: int) -> None: ...

    def look_back(self) -> None: ...

    def check(self, _answer: str) -> None: ...

    def close(self) -> None: ...


def item_of(index: int, tokens: int, schema: str) -> worker_pb2.BatchItem:
    """A sampled request; free and endless where `schema` is empty."""
    item = worker_pb2.BatchItem(slot=index)
    request = item.request
    request.tenant, request.request_id, request.epoch = "bench", f"r{index}", 1
    request.prompt_token_ids.extend(_PROMPT)
    request.params.max_tokens = tokens
    sampling = request.params.sampling
    sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed = 0.8, 40, 0.95, index
    if schema:
        request.params.constraint.json_schema = schema
    else:
        request.params.ignore_eos = True
    return item


def decode_rate(engine: Engine, tokens: int, schema: str) -> float:
    """Tokens per second of 8 sequences, from when each has one."""
    for index in range(SEQUENCES):
        engine.start(item_of(index, tokens, schema))
    counts: Counter[str] = Counter()
    began, at_start = 0.0, 0
    ended = 0
    while ended < SEQUENCES:
        engine.step()
        report = engine.take_report()
        if report is None:
            time.sleep(0.0002)
            continue
        for emission in report.step.emissions:
            chunk = tokens_pb2.TokenChunk.FromString(emission.chunk)
            counts[emission.key] += len(chunk.token_ids)
            ended += chunk.WhichOneof("event") in ("finished", "failed")
        if not began and len(+counts) == SEQUENCES:
            began, at_start = time.perf_counter(), counts.total()
    return (counts.total() - at_start) / (time.perf_counter() - began)


def throughput(path: Path, tokens: int, rounds: int, threads: int) -> dict[str, float]:
    """Constrained ÷ free, of rounds in turn."""
    config = engine_pb2.EngineConfig(
        model_path=str(path),
        slots=SEQUENCES,
        sequences=SEQUENCES,
        batch_tokens=512,
        flash_attention=True,
        threads=threads,
    )
    config.kv_cells = SEQUENCES * (len(_PROMPT) + tokens + 64)
    backend = Backend(config)
    engine = Engine(
        backend,
        worker_id="bench",
        max_itl_factor=5.0,
        step_limit_s=0.2,
        tiers=Tiers.off(),
        constraints=Constraints(backend.vocab),
        has_prefix_cache=False,
    )
    found: dict[str, float] = {}
    for name, schema in SCHEMAS.items():
        rates: dict[str, list[float]] = {"": [], name: []}
        decode_rate(engine, 8, json.dumps(schema))
        for _ in range(rounds):
            for kind in rates:
                rates[kind].append(decode_rate(engine, tokens, json.dumps(schema) if kind else ""))
        found[name] = max(rates[name]) / max(rates[""])  # others only slow a round down
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--model-file", type=Path, default=Path("models/bench.gguf"))
    parser.add_argument("--tokens", type=positive, default=96, help="of each answer; default: %(default)s")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument(
        "--threads", type=positive, nargs="+", default=[2], help="of the engine, in turn; default: 2"
    )
    parser.add_argument("--no-throughput", action="store_true", help="masks alone")
    add_json(parser)
    options = parser.parse_args()
    console = Console()
    pieces = common_pieces(max(VOCABULARIES))
    if len(pieces) < max(VOCABULARIES) - 257:
        sys.exit("Python's sources are too small for the largest vocabulary")
    masks = [mask_figures(size, pieces) for size in VOCABULARIES]
    table = Table(*masks[0])
    for row in masks:
        table.add_row(*(f"{value:,.0f}" if value >= 100 else f"{value:.1f}" for value in row.values()))
    console.print(table)
    ratios = {}
    if not options.no_throughput:
        # OpenMP reads this when llama.cpp's libraries are loaded: in a process of their own.
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
        for threads in options.threads:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as engine:
                given = options.model_file, options.tokens, options.rounds, threads
                ratios[threads] = engine.submit(throughput, *given).result()
            for name, ratio in ratios[threads].items():
                console.print(f"{threads} threads, {name}: {ratio:.3f}")
    write_json(options, {"masks": masks, "constrained_to_free": ratios})


if __name__ == "__main__":
    main()
