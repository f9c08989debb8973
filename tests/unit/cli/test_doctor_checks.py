"""Findings about facts that no test can have for real: another CPU, GPUs, limits of a control group."""

from __future__ import annotations

import io
import re
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from harness.deploy import ROOT
from rich.console import Console

from inferflux.cli.doctor.checks import certificates, machine, programs, servers, settings
from inferflux.cli.doctor.command import view
from inferflux.cli.doctor.facts import llama as llama_facts
from inferflux.cli.doctor.facts.environment import parse
from inferflux.cli.doctor.finding import Finding, Level, ok, problem
from inferflux.cli.doctor.seen import Certificate, Failure, Llama, Memory, Nats, Redis, SharedMemory
from inferflux.cli.reach.errors import CommandError
from inferflux.common.process.machine.free_memory import limit_bytes

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BUILT = Llama(
    "0.3.36", {"AVX2": "1", "AVX512": "1"}, {"CPU": 1, "RPC": 0}, cpu_flags=frozenset({"avx2", "avx512f"})
)
GIB = 1 << 30


def plan_of(weights: int, kv: int) -> dict[str, object]:
    return {"devices": [{"name": "main memory", "weights": weights, "kv": kv, "compute": 0}]}


def worst(findings: list[Finding]) -> Finding:
    return max(findings, key=lambda one: list(Level).index(one.level))


def test_a_driver_of_gpus_without_a_build_for_them_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    drivers = llama_facts._drivers(tmp_path)
    found = worst(list(programs.llama(replace(BUILT, drivers=drivers))))
    assert (found.level, found.check) == (Level.WARNING, "gpu")
    assert "/dev/nvidiactl" in found.said
    assert "-DGGML_CUDA=on" in found.remedy
    assert "llama-cpp-python==0.3.36" in found.remedy


@pytest.mark.parametrize(
    ("backends", "drivers", "said"),
    [
        ({"CPU": 1, "CUDA": 0}, {"CUDA": "/dev/nvidia0"}, "finds no GPU"),
        ({"CPU": 1, "CUDA": 0}, {}, "there is no GPU of it"),
    ],
)
def test_a_build_for_gpus_that_finds_none_is_named(
    backends: dict[str, int], drivers: dict[str, str], said: str
) -> None:
    found = worst(list(programs.llama(replace(BUILT, backends=backends, drivers=drivers))))
    assert (found.level, found.check) == (Level.WARNING, "gpu")
    assert said in found.said


def test_gpus_that_are_used_are_fine() -> None:
    seen = replace(BUILT, backends={"CPU": 1, "CUDA": 2}, drivers={"CUDA": "/dev/nvidia0"})
    found = list(programs.llama(seen))
    assert worst(found).level is Level.OK
    assert "CUDA (2 GPUs)" in found[0].said


def test_a_slow_build_is_named_and_one_for_fewer_vectors_is_not() -> None:
    slow = worst(list(programs.llama(replace(BUILT, features={}))))
    assert (slow.level, "AVX2" in slow.said) == (Level.WARNING, True)
    assert worst(list(programs.llama(replace(BUILT, features={"AVX2": "1"})))).level is Level.OK


@pytest.mark.parametrize(
    ("failure", "number", "level", "said"),
    [
        ("ended by signal 4", signal.SIGILL, Level.PROBLEM, "another CPU"),
        ("No module named 'llama_cpp'", 0, Level.UNKNOWN, "not installed"),
        ("libgomp.so.1: cannot open shared object file", 0, Level.PROBLEM, "libgomp.so.1"),
    ],
)
def test_a_llama_cpp_that_does_not_load_is_told_apart(
    failure: str, number: int, level: Level, said: str
) -> None:
    (found,) = programs.llama(Llama(failure=failure, signal=number))
    assert found.level is level
    assert said in found.said
    assert found.remedy


def test_python_that_is_too_old_is_named() -> None:
    found = worst(list(programs.versions({"inferflux-cli": "1"}, (3, 10, 2))))
    assert (found.level, "3.10.2" in found.said) == (Level.PROBLEM, True)


def test_the_limit_of_memory_is_that_of_the_tightest_group(tmp_path: Path) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4000 kB\n")
    assert limit_bytes(tmp_path) == 8 * GIB
    group = tmp_path / "sys" / "fs" / "cgroup" / "pod" / "worker"
    group.mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/pod/worker\n")
    (group / "memory.max").write_text("max\n")
    (group.parent / "memory.max").write_text(f"{2 * GIB}\n")
    assert limit_bytes(tmp_path) == 2 * GIB


@pytest.mark.parametrize(
    ("weights", "kv_bytes", "host_bytes", "level"),
    [
        (2 * GIB, 0, 0, Level.OK),
        (2 * GIB, 0, 2 * GIB, Level.WARNING),
        (4 * GIB, 0, 0, Level.PROBLEM),
        (2 * GIB, 3 * GIB, 0, Level.PROBLEM),
    ],
)
def test_a_model_is_held_to_the_limit_of_memory(
    weights: int, kv_bytes: int, host_bytes: int, level: Level
) -> None:
    seen = Memory(4 * GIB, Path("m.gguf"), plan_of(weights, GIB), kv_bytes=kv_bytes, host_bytes=host_bytes)
    (found,) = machine.memory(seen, has_gpu=False)
    assert found.level is level
    assert bool(found.remedy) == (level is not Level.OK)
    (unclear,) = machine.memory(seen, has_gpu=True)
    assert unclear.level is Level.UNKNOWN


def test_shared_memory_that_is_missing_matters_to_workers_alone() -> None:
    gone = SharedMemory(Path("shm"), None)
    assert [one.level for one in machine.shm(gone, is_used=True)] == [Level.WARNING]
    assert [one.level for one in machine.shm(gone, is_used=False)] == [Level.UNKNOWN]


@pytest.mark.parametrize(
    ("ahead_s", "level", "said"),
    [(1.0, Level.OK, "within"), (9.0, Level.PROBLEM, "behind"), (-9.0, Level.PROBLEM, "ahead")],
)
def test_a_clock_may_differ_a_little(ahead_s: float, level: Level, said: str) -> None:
    (found,) = servers.clock(Nats((), ahead_s=ahead_s), None)
    assert found.level is level
    assert said in found.said


@pytest.mark.parametrize("check", [servers.nats, servers.redis])
@pytest.mark.parametrize("failure", Failure)
def test_every_failure_of_a_server_has_words_and_a_remedy(check, failure: Failure) -> None:  # type: ignore[no-untyped-def]
    seen = Redis("db:6379", failure, "why")
    (found,) = check(seen if check is servers.redis else Nats((seen,)))  # type: ignore[arg-type]
    assert found.level is Level.PROBLEM
    assert found.remedy
    assert "why" in found.said or failure in (Failure.REFUSED, Failure.FOREIGN)


@pytest.mark.parametrize(
    ("names", "host", "fits"),
    [
        (("llm.example.org",), "LLM.example.org", True),
        (("*.example.org",), "llm.example.org", True),
        (("*.example.org",), "a.b.example.org", False),
        (("::1",), "0:0:0:0:0:0:0:1", True),
        (("10.0.0.1",), "10.0.0.2", False),
    ],
)
def test_hosts_are_compared_as_tls_compares_them(names: tuple[str, ...], host: str, fits: bool) -> None:
    one = Certificate(
        "INFERFLUX_TLS_CERT", Path("c.pem"), "", NOW - timedelta(days=1), NOW + timedelta(days=90), names,
        hosts=(host,),
    )  # fmt: skip
    (found,) = certificates.decide([one], NOW)
    assert (found.level is Level.OK) is fits


def test_a_certificate_of_tomorrow_is_a_matter_of_the_clock() -> None:
    one = Certificate("X", Path("c.pem"), "", NOW + timedelta(days=1), NOW + timedelta(days=90))
    (found,) = certificates.decide([one], NOW)
    assert (found.level, "clock" in found.remedy) == (Level.PROBLEM, True)


def test_a_file_of_variables_is_read_as_systemd_and_shells_have_it() -> None:
    text = "# one\n; two\n\nA=1\nexport B='x y'\nC = \"z\"\nD=a#b\nE=\n"
    assert parse(text, "x.env") == {"A": "1", "B": "x y", "C": "z", "D": "a#b", "E": ""}


@pytest.mark.parametrize("line", ["A", "A B=1", "A='secret", "=secret"])
def test_a_line_that_is_no_variable_is_named_without_its_value(line: str) -> None:
    with pytest.raises(CommandError, match=r"x.env, line 2: not NAME=value") as error:
        parse(f"OK=1\n{line}\n", "x.env")
    assert "secret" not in str(error.value)


def test_variables_of_the_compose_files_are_known() -> None:
    files = ("docker-compose.yml", "docker-compose.fleet.yml", "deploy/publish.yml")
    text = "".join((ROOT / file).read_text() for file in files)
    named = set(re.findall(r"\$\{(INFERFLUX_[A-Z_]+)", text))
    assert named >= settings.OF_COMPOSE


def test_a_remedy_stands_below_its_finding_and_no_brackets_are_lost() -> None:
    console = Console(width=60, file=io.StringIO(), force_terminal=False)
    console.print(
        view([problem("nats", "[::1]:4222: port 4222 is closed", "start [nats-server]"), ok("disk", "fine")])
    )
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert [line.split() for line in shown.splitlines()[1:4]] == [
        ["problem", "nats", "[::1]:4222:", "port", "4222", "is", "closed"],
        ["->", "start", "[nats-server]"],
        ["ok", "disk", "fine"],
    ]
    assert "1 problem, 0 warnings" in shown
