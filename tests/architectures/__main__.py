"""`python -m architectures`: what `make architectures` runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.rows.peer_build import source

from .families import FAMILIES, Family
from .hosting import a_host, why_not_hosted
from .page import COLUMNS, LOADS, page_of
from .trying import TRIALS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architectures.md"
DEMO = ROOT / "models" / "inferflux-demo.gguf"
_LIMIT_S = 900


def made(family: Family, folder: Path, *, is_small: bool) -> Path | str:
    """A tiny model of a family; or why llama.cpp makes none."""
    out, vocabulary = folder / f"{family.architecture}.gguf", DEMO
    if family.needs_it or not is_small:
        vocabulary = source(os.environ) / "models" / f"ggml-vocab-{family.vocabulary}.gguf"
    done = _run("architectures.writing", family.architecture, str(vocabulary), str(out))
    return out if done.returncode == 0 else _last_line(done)


def tried(path: Path) -> dict[str, str]:
    """Try what an engine does with a model, by column."""
    done = _run("architectures.trying", str(path))
    if done.returncode == 0:
        found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
        return found
    return dict.fromkeys(TRIALS, _last_line(done))


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines()
    return f"its process ended with status {done.returncode}: {lines[-1] if lines else ''}"[:300]


async def run(names: list[str], *, is_small: bool) -> dict[str, dict[str, str]]:
    """Try architectures one by one. A worker process loads those of llama.cpp's vocabularies as well."""
    results: dict[str, dict[str, str]] = {}
    async with AsyncExitStack() as kept:
        folder = Path(kept.enter_context(TemporaryDirectory()))
        host = None if is_small else await kept.enter_async_context(a_host(folder))
        for architecture in names:
            path = await asyncio.to_thread(made, FAMILIES[architecture], folder, is_small=is_small)
            if isinstance(path, str):
                results[architecture] = dict.fromkeys(TRIALS, path)
            else:
                results[architecture] = await asyncio.to_thread(tried, path)
                if host is not None:
                    results[architecture][LOADS] = await why_not_hosted(host, path)
                path.unlink()
            print(architecture, json.dumps(results[architecture]), flush=True)
    return results


def main() -> int:
    """Exits with 1 where something does not work."""
    parser = argparse.ArgumentParser(prog="make architectures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(FAMILIES)}")
    parser.add_argument(
        "--small", action="store_true", help="with the demo model's vocabulary, in an engine alone: minutes"
    )
    asked = parser.parse_args()
    names = asked.names or list(FAMILIES)
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}")
    results = asyncio.run(run(names, is_small=asked.small))
    if set(names) == set(FAMILIES):
        PAGE.write_text(page_of(results, is_small=asked.small))
    return 1 if any(found.get(column) for found in results.values() for column in COLUMNS) else 0


if __name__ == "__main__":
    sys.exit(main())
