"""What only Linux has is used where it is there, and done without where it is not."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from inferflux.cli.stack.plan import ProcessSpec
from inferflux.cli.stack.process import ManagedProcess
from inferflux.common.process.child.captured import Captured
from inferflux.common.process.child.memory_file import path_of
from inferflux.common.process.child.process_limits import bound
from inferflux.common.process.machine import free_memory
from inferflux.common.process.machine.cores import usable_cores

ROOT = Path(__file__).parents[3]
LINUX_ONLY = ("sched_getaffinity", "sched_setaffinity", "memfd_create", "pidfd_open", "prctl", "RLIMIT_AS")

_CHILD = """
import sys, time
from inferflux.common.process.child import parent_death
parent_death._find_prctl = lambda: None
parent_death.exit_with_parent(parent=int(sys.argv[1]))
print("watches", flush=True)
time.sleep(60)
"""
_PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], stdout=subprocess.PIPE)
print(child.stdout.readline().decode(), flush=True)
os._exit(0)
"""


def test_what_a_child_prints_is_captured_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with Captured() as captured:
        subprocess.run([sys.executable, "-c", "print('here')"], stdout=captured.fileno(), check=True)
        assert captured.read() == b"here\n"


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_bytes_have_a_path_meanwhile(monkeypatch: pytest.MonkeyPatch, *, has_memory_files: bool) -> None:
    if not has_memory_files:
        monkeypatch.delattr(os, "memfd_create")
    with path_of(b"a vocabulary") as path:
        assert path.read_bytes() == b"a vocabulary"
    assert not path.exists()


def test_a_child_ends_with_its_parent_where_the_kernel_does_not_tell() -> None:
    # The child holds the pipe open until it has ended.
    found = subprocess.run(
        [sys.executable, "-c", _PARENT, _CHILD], capture_output=True, timeout=30, check=True, text=True
    )
    assert found.stdout.strip() == "watches"


def test_a_limit_the_system_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(resource, "RLIMIT_AS")
    bound("RLIMIT_AS", 1, 1)
    with free_memory.at_most(1):
        assert len(bytearray(1 << 20)) == 1 << 20


def test_nothing_is_bounded_where_the_system_does_not_say_what_is_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(free_memory, "_mapped_bytes", lambda: None)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with free_memory.at_most(1):
        assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_without_an_affinity_every_core_may_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == os.cpu_count()


async def test_a_process_starts_where_it_cannot_be_bound_to_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    spec = ProcessSpec("one", "one", (sys.executable, "-c", "pass"), {}, 0, frozenset({0}))
    process = ManagedProcess(spec, tmp_path / "log")
    await process.start()
    assert await process.wait() == 0


def test_every_call_that_only_linux_has_is_looked_for_first() -> None:
    unguarded = []
    for folder in ("services", "libs", "convert", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            for name in LINUX_ONLY:
                is_used = re.search(rf"\b(os|resource|libc)\.{name}\b", source)
                is_guarded = re.search(rf'(has|get)attr\([^)]*"{name}"|except AttributeError', source)
                if is_used and not is_guarded:
                    unguarded.append(f"{path.name}: {name}")
    assert unguarded == []
