"""How many threads an engine takes by default: a container's CPU quota counts, under cgroups v1 and v2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferflux.common.process.machine.cores import parse_v1_quota, parse_v2_quota, usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def cores(root: Path, own: str, files: dict[str, str]) -> int:
    """`usable_cores` with `own` as /proc/self/cgroup and these files as /sys/fs/cgroup."""
    for name, text in (
        {"proc/self/cgroup": own} | {f"sys/fs/cgroup/{k}": v for k, v in files.items()}
    ).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return usable_cores(root)


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2.0),
        ("150000 100000\n", 1.5),
        ("", None),
        ("1 0", None),
        ("x y", None),
    ],
)
def test_a_quota_of_cgroup_v2_is_read(cpu_max: str, expected: float | None) -> None:
    assert parse_v2_quota(cpu_max) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [("-1\n", "100000\n", None), ("300000\n", "100000\n", 3.0), ("50000", "100000", 0.5), ("", "", None)],
)
def test_a_quota_of_cgroup_v1_is_read(quota: str, period: str, expected: float | None) -> None:
    assert parse_v1_quota(quota, period) == expected


def test_without_any_quota_every_core_of_the_affinity_is_taken(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "max 100000\n"}) == 8


def test_without_cgroups_every_core_of_the_affinity_is_taken(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == 8


def test_without_an_affinity_every_core_of_the_machine_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_cores(tmp_path / "none") == 6


def test_a_container_under_cgroup_v2_takes_the_whole_cores_of_its_quota(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "350000 100000\n"}) == 3


def test_less_than_a_core_is_one_thread(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "50000 100000\n"}) == 1


def test_a_quota_beyond_the_affinity_adds_no_threads(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": "1600000 100000\n"}) == 8


def test_a_quota_of_a_cgroup_above_counts(tmp_path: Path) -> None:
    files = {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}
    assert cores(tmp_path, "0::/a/b\n", files) == 2


def test_a_container_under_cgroup_v1_sees_its_quota_at_the_root(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cores(tmp_path, "4:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n0::/\n", files) == 2


def test_a_process_under_cgroup_v1_reads_its_own_folder(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/job/cpu.cfs_quota_us": "400000\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert cores(tmp_path, "2:cpu,cpuacct:/job\n", files) == 4
