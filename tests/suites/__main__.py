"""`python -m suites`: what `make suites` runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

from . import llama_server
from .clients import run as run_clients
from .environments import ROOT
from .rows import Row, table
from .stack import Served, served


def main() -> int:
    parser = argparse.ArgumentParser(prog="make suites", description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "inferflux-demo.gguf")
    parser.add_argument("--only", help="llama, clients, or the name of a client, such as langchain")
    parser.add_argument("--all", action="store_true", help="name the cases that were skipped, too")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the suite's output")
    parser.add_argument("--json", type=Path, help="write the rows there")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="suites-"))
    try:
        rows = asyncio.run(_run(asked.model, asked.only, folder))
    finally:
        if asked.keep:
            print(f"output: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(rows, is_whole=asked.all))
    if asked.json:
        asked.json.write_text(
            json.dumps([[row.suite, row.case, row.outcome, row.why] for row in rows], indent=1)
        )
    return 1 if any(row.outcome == "failed" for row in rows) else 0


async def _run(model: Path, only: str | None, folder: Path) -> list[Row]:
    models = folder / "served"
    models.mkdir()
    async with served(model, models) as stack:
        return await asyncio.to_thread(_rows, stack, only, folder)


def _rows(stack: Served, only: str | None, folder: Path) -> list[Row]:
    rows: list[Row] = []
    if only in (None, "llama"):
        rows += llama_server.run(stack, folder)
    if only != "llama":
        rows += run_clients(stack, only)
    return rows


if __name__ == "__main__":
    sys.exit(main())
