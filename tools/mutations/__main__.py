"""Seed each fault of `mutations.toml` in turn, and run the tests that should find it.

python -m tools.mutations                     every fault, in this tree, whose tracked files must be committed
python -m tools.mutations --only "lease"      those whose names have this text
python -m tools.mutations --tree PATH         in another checkout, with the tests and the .venv that it has
python -m tools.mutations --marks ""          with tests of these marks; else those of `make test`
python -m tools.mutations --times 5           each so often: tests with random examples must find it each time

A file is changed in place, and is as before when its tests are over. Exit status 1: a fault was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import plan

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1
_FAILURE = re.compile(r"^(?:FAILED|ERROR) \S*?([^/\s]+\.py::.+?)(?: - |$)", re.MULTILINE)


def run(tests: Iterable[Path], tree: Path, marks: str) -> str | None:
    """Run tests of these marks until one fails. Returns its name; None if all pass.

    Raises:
        PlanError: they did not run.
    """
    with tempfile.TemporaryDirectory() as forgotten:
        # Nothing is left behind: neither modules with the fault, nor the examples that found it.
        env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_STORAGE_DIRECTORY": forgotten}
        env["PYTHONPATH"] = str(Path(__file__).parent)  # has the plugin, whichever tree is tested
        command = [str(tree / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "--tb=no", "-m", marks]
        command += ["-p", "no:cacheprovider", "-p", "unshrunk", *map(str, tests)]
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (PASSED, FAILED):
        raise plan.PlanError(f"the tests did not run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    failure = _FAILURE.search(done.stdout)
    return None if done.returncode == PASSED else failure[1] if failure else "a crash, or a test that hangs"


@contextmanager
def seeded(mutation: plan.Mutation, path: Path) -> Iterator[None]:
    """Have a file with a fault in it meanwhile."""
    text, times = path.read_bytes(), path.stat()
    try:
        path.write_text(text.decode().replace(mutation.old, mutation.new))
        yield
    finally:
        path.write_bytes(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="PATH")
    parser.add_argument("--marks", default="not long", metavar="MARKS")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--times", type=int, default=1, metavar="N")
    asked = parser.parse_args()
    tree = asked.tree.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if subprocess.check_output(["git", "status", "--porcelain", "-uno"], cwd=tree):  # noqa: S607
        raise plan.PlanError(f"{tree} has changes: commit them first")
    mutations = [m for m in plan.read(plan.LIST.read_text()) if asked.only in m.name]
    texts = plan.sources(tree)
    rows = [(m, plan.place(m, texts), plan.tests_of(m, tree)) for m in mutations]
    if failure := run(sorted({test for _, _, tests in rows for test in tests}), tree, asked.marks):
        raise plan.PlanError(f"without a fault, {failure} fails")
    print("| fault | found | by | s |\n|---|---|---|--:|")
    missed = 0
    for mutation, path, tests in rows * asked.times:
        began_s = time.monotonic()
        with seeded(mutation, path):
            failure = run(tests, tree, asked.marks)
        missed += failure is None
        found = f"found | `{failure}`" if failure else "NOT found | -"
        print(f"| {mutation.name} | {found} | {time.monotonic() - began_s:.1f} |", flush=True)
    print(f"\n{len(rows) * asked.times - missed} of {len(rows) * asked.times} were found")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except plan.PlanError as error:
        sys.exit(str(error))
