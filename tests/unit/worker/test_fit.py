"""How many KV cells are made of the memory there is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.process.machine.free_memory import free_bytes
from inferflux.worker.files.fit import (
    CELL_UNIT,
    CellShape,
    DoesNotFitError,
    cells_in,
    fit_cells,
    whole_cells,
)

SHAPE = CellShape(kept_bytes=32 * 2048 * 2, batch_rows=512)
GIB = 1 << 30


def test_a_cell_takes_its_keys_and_values_and_more() -> None:
    assert SHAPE.bytes > 32 * 2048 * 2


def test_what_fits_is_given_as_wanted() -> None:
    assert fit_cells(4096, 256, SHAPE, 16 * GIB) == 4096


def test_an_unrequested_size_is_cut_to_half_of_the_memory() -> None:
    cells = fit_cells(2**31 - 1, 256, SHAPE, 16 * GIB)
    assert 7.9 * GIB < cells * SHAPE.bytes <= 8 * GIB


def test_what_was_asked_for_may_take_all_of_it() -> None:
    least = 12 * GIB // SHAPE.bytes
    assert fit_cells(least, least, SHAPE, 16 * GIB) == least


def test_what_was_asked_for_and_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(DoesNotFitError, match=r"^1000000 KV cells take 125\.. GiB of memory, 16\.0 GiB are"):
        fit_cells(1_000_000, 1_000_000, SHAPE, 16 * GIB)


@given(n_bytes=st.integers(1, 1 << 40), kept_bytes=st.integers(1, 1 << 20), least=st.integers(1, 10_000))
def test_bytes_hold_as_many_whole_cells_as_they_can(n_bytes: int, kept_bytes: int, least: int) -> None:
    needed = whole_cells(least) * kept_bytes
    if n_bytes < needed:
        with pytest.raises(DoesNotFitError, match=rf"of {least} tokens takes {needed} bytes"):
            cells_in(n_bytes, kept_bytes, least)
        return
    cells = cells_in(n_bytes, kept_bytes, least)
    assert cells == whole_cells(cells) >= least
    assert cells * kept_bytes <= n_bytes
    assert (cells + CELL_UNIT) * kept_bytes > n_bytes or cells == 2**31 - CELL_UNIT


def test_bytes_cannot_be_had_of_a_model_without_cells() -> None:
    with pytest.raises(DoesNotFitError, match="INFERFLUX_WORKER_KV_CELLS"):
        cells_in(1 << 30, 0, 256)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    4096 kB\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 4096 << 10),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "max\n",
                "sys/fs/cgroup/memory.current": "5",
            },
            4096 << 10,
        ),
        (
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "3000\n",
                "sys/fs/cgroup/memory.current": "2500\n",
                "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 700\n",
            },
            1200,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a/b\n0::/\n",
                "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "1000",
                "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": "1400",
            },
            0,
        ),
        # A limit on a slice between this process's group and the root.
        (
            {
                "proc/self/cgroup": "0::/work.slice/app.service\n",
                "sys/fs/cgroup/work.slice/memory.max": "3000\n",
                "sys/fs/cgroup/work.slice/memory.current": "1000\n",
                "sys/fs/cgroup/work.slice/app.service/memory.max": "max\n",
                "sys/fs/cgroup/work.slice/app.service/memory.current": "900\n",
            },
            2000,
        ),
        # Controllers of version 1 that are mounted together.
        (
            {
                "proc/self/cgroup": "4:cpuset,memory:/a\n",
                "sys/fs/cgroup/cpuset,memory/a/memory.limit_in_bytes": "1000",
                "sys/fs/cgroup/cpuset,memory/a/memory.usage_in_bytes": "400",
            },
            600,
        ),
        # A container that sees its own group as the root, and the host's path in /proc.
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "300",
            },
            700,
        ),
    ],
)
def test_the_narrowest_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert free_bytes(write(tmp_path, MACHINE | files)) == expected


def test_this_machine_has_memory_left() -> None:
    assert 0 < free_bytes() < 1 << 50
