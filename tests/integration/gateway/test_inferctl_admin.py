"""`inferctl admin` before a gateway and a scheduler that a test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from harness.gateway import Backend, GatewayProcess, until
from harness.inferctl import Terminal, run
from harness.scripted_admin import ScriptedAdmin

from inferflux.common.contract.errors import Aborted, FailedPrecondition, Unavailable
from inferflux.v1 import scheduler_pb2

Change = scheduler_pb2.SetFairness


@pytest.fixture
async def scheduler(backend: Backend) -> AsyncIterator[ScriptedAdmin]:
    scripted = ScriptedAdmin(backend.bus)
    await scripted.start()
    yield scripted
    await scripted.close()


@pytest.fixture
def env(gateway: GatewayProcess, admin_key: str, tmp_path: Path) -> dict[str, str]:
    return {
        "INFERFLUX_ENDPOINT": f"127.0.0.1:{gateway.port}",
        "INFERFLUX_API_KEY": admin_key,
        "INFERFLUX_STATE_DIR": str(tmp_path),
    }


async def test_fairness_is_shown_and_nothing_changed(env: dict[str, str], scheduler: ScriptedAdmin) -> None:
    result = await run("admin", "fairness", env=env)
    assert result.returncode == 0, result.stderr
    assert "5 and above" in result.stdout
    assert [request.WhichOneof("request") for request in scheduler.requests] == ["get_fairness"]


async def test_only_the_flags_that_are_given_change_something(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    flags = ("--no-preempt", "--high-priority", "-2", "--json")
    result = await run("admin", "fairness", *flags, env=env)
    assert json.loads(result.stdout) == {
        "enable_preemption": False,
        "high_priority_threshold": -2,
        "max_timeslice_tokens": 0,
        "version": "2",
    }
    (request,) = scheduler.requests
    assert request.set_fairness == Change(enable_preemption=False, high_priority_threshold=-2)
    assert not request.set_fairness.HasField("max_timeslice_tokens")


async def test_a_reset_and_a_value_go_together(env: dict[str, str], scheduler: ScriptedAdmin) -> None:
    await run("admin", "fairness", "--reset", "--timeslice", "0", env=env)
    (request,) = scheduler.requests
    assert request.set_fairness == Change(reset=True, max_timeslice_tokens=0)


async def test_a_change_names_the_version_that_it_was_made_from(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    change = ("admin", "fairness", "--timeslice", "64", "--version", "1")
    assert (await run(*change, env=env)).returncode == 0
    refused = await run(*change, env=env)
    assert refused.returncode == 1
    assert "changed meanwhile" in refused.stderr
    assert scheduler.fairness.version == 2


async def test_a_drain_is_followed_in_lines_without_a_terminal(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    scheduler.drains(1)
    draining = asyncio.create_task(run("admin", "drain", "worker-1", "--hand-over-after", "1.5", env=env))
    await until(lambda: len(scheduler.requests) > 2)
    scheduler.drains(0, is_drained=True)
    result = await draining
    assert result.returncode == 0, result.stderr
    assert result.stdout == "worker-1 is draining: 1 request left\nworker-1 may be stopped\n"
    assert scheduler.requests[0].drain.hand_over_after_ms == 1500


async def test_a_drain_at_the_terminal_ends_with_what_may_be_done(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    scheduler.drains(3)
    async with Terminal("admin", "drain", "worker-1", env=env) as terminal:
        await terminal.see("draining worker-1.*3 requests left")
        scheduler.drains(1)
        await terminal.see("1 request left")
        scheduler.drains(0, is_drained=True)
        await terminal.see("worker-1 may be stopped")
        assert await terminal.exit_status() == 0


async def test_ctrl_c_stops_watching_and_says_that_draining_goes_on(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    scheduler.drains(3)
    async with Terminal("admin", "drain", "worker-1", env=env) as terminal:
        await terminal.see("3 requests left")
        terminal.press_ctrl_c()
        await terminal.see("worker-1 goes on draining")
        assert await terminal.exit_status() == 130
    assert not any(request.drain.undo for request in scheduler.requests)


async def test_a_drain_can_be_left_to_itself(env: dict[str, str], scheduler: ScriptedAdmin) -> None:
    scheduler.drains(3)
    result = await run("admin", "drain", "worker-1", "--no-wait", env=env)
    assert (result.returncode, result.stdout) == (0, "worker-1 is draining: 3 requests left\n")
    scheduler.drains(0, is_drained=True)
    assert (
        await run("admin", "drain", "worker-1", "--no-wait", env=env)
    ).stdout == "worker-1 may be stopped\n"


async def test_a_drain_that_is_undone_elsewhere_is_not_a_success(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    scheduler.drains(3)
    draining = asyncio.create_task(run("admin", "drain", "worker-1", env=env))
    await until(lambda: len(scheduler.requests) > 2)
    scheduler.progress = scheduler_pb2.DrainProgress(residents=3, state=scheduler_pb2.WORKER_STATE_READY)
    result = await draining
    assert result.returncode == 1
    assert result.stderr == "inferctl: worker-1 takes requests again: its draining was undone\n"


async def test_a_worker_takes_requests_again(env: dict[str, str], scheduler: ScriptedAdmin) -> None:
    result = await run("admin", "undrain", "worker-1", env=env)
    assert (result.returncode, result.stdout) == (0, "worker-1 takes requests again\n")
    assert scheduler.requests[0].drain.undo


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("drain", "unknown"), "there is no worker unknown"),
        (("drain", "unknown", "--no-wait"), "there is no worker unknown"),
        (("undrain", "a.b"), "worker"),
        (("cache", "clear", "--worker", "unknown"), "there is no worker unknown"),
        (("cache", "clear", "--worker", "worker-1", "--answers"), "no worker has any"),
        (("cache", "clear", "--tenant", "a b"), "tenant"),
        (("cache", "clear", "--model", "unknown"), "unknown"),
    ],
)
async def test_what_fails_is_one_line_and_status_1(
    env: dict[str, str], scheduler: ScriptedAdmin, arguments: tuple[str, ...], said: str
) -> None:
    result = await run("admin", *arguments, env=env)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("inferctl: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


async def test_without_a_scheduler_it_says_so(env: dict[str, str], backend: Backend) -> None:
    for arguments in (("fairness",), ("drain", "worker-1"), ("undrain", "worker-1")):
        result = await run("admin", *arguments, env=env)
        assert (result.returncode, result.stderr) == (1, "inferctl: no scheduler answers\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fairness", "--timeslice", "-1"), "--timeslice"),
        (("fairness", "--timeslice", "1000001"), "1000000"),
        (("fairness", "--high-priority", "high"), "--high-priority"),
        (("fairness", "--high-priority", "1001"), "1000"),
        (("drain",), "WORKER"),
        (("drain", "worker-1", "--hand-over-after", "nan"), "hand"),
        (("drain", "worker-1", "--hand-over-after", "1e6"), "86400"),
    ],
)
async def test_wrong_usage_is_status_2_and_says_what_is_right(
    env: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    result = await run("admin", *arguments, env=env)
    assert result.returncode == 2
    assert said in result.stderr


FREED = scheduler_pb2.CacheCleared(sequences=2, cells=1300, host_bytes=3 << 20, disk_bytes=5 << 30)


async def test_what_was_cleared_is_a_table(
    env: dict[str, str], scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.worker_id = backend.worker_id
    scheduler.cleared.cleared.CopyFrom(FREED)
    result = await run("admin", "cache", "clear", "--model", backend.card.name, env=env)
    assert result.returncode == 0, result.stderr
    (row,) = [line.split() for line in result.stdout.splitlines() if line.startswith(backend.worker_id)]
    assert row == [backend.worker_id, "2", "1,300", "3", "MiB", "5", "GiB"]
    assert "answer cache: 0 answers, 0 B" in result.stdout
    assert scheduler.requests[0].clear_cache.clear == scheduler_pb2.ClearCache(prefixes=True, tiers=True)


async def test_only_what_is_named_is_cleared_and_json_says_it(
    env: dict[str, str], scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.worker_id = backend.worker_id
    scheduler.cleared.cleared.CopyFrom(FREED)
    flags = ("--worker", backend.worker_id, "--tenant", "acme", "--tiers", "--json")
    result = await run("admin", "cache", "clear", *flags, env=env)
    (worker,) = json.loads(result.stdout)["workers"]
    assert (worker["worker_id"], worker["cleared"]["cells"]) == (backend.worker_id, 1300)
    (request,) = scheduler.requests
    assert request.clear_cache.clear == scheduler_pb2.ClearCache(cache_scope="tenant/acme", tiers=True)


async def test_a_worker_that_was_not_cleared_is_shown_and_is_status_1(
    env: dict[str, str], scheduler: ScriptedAdmin, backend: Backend
) -> None:
    scheduler.error = Unavailable("it did not answer")
    result = await run("admin", "cache", "clear", "--prefixes", env=env)
    assert result.returncode == 1
    assert "it did not answer" in result.stdout
    assert result.stderr.startswith("inferctl: not cleared: ")
    assert backend.worker_id in result.stderr


async def test_a_request_is_moved_and_the_terminal_says_so(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    result = await run("admin", "move", "r1", "worker-1", "--tenant", "bolt", env=env)
    assert result.returncode == 0, result.stderr
    said = "r1 runs on worker-1 now, and left worker-0 (1,234 tokens went ahead, 0.25 s)"
    assert " ".join(result.stdout.split()) == said
    (request,) = scheduler.requests
    assert request.move == scheduler_pb2.MoveRequest(tenant="bolt", request_id="r1", worker_id="worker-1")


async def test_a_request_that_was_not_moved_ends_the_command_with_the_reason(
    env: dict[str, str], scheduler: ScriptedAdmin
) -> None:
    scheduler.error = Aborted("request r1 was not moved: worker-1 is gone", reason="MOVE_GONE")
    result = await run("admin", "move", "r1", "worker-1", env=env)
    assert result.returncode == 1
    assert "request r1 was not moved: worker-1 is gone" in result.stderr
    scheduler.error = FailedPrecondition("request r1 cannot be moved: worker-1 has it already")
    result = await run("admin", "move", "r1", "worker-1", env=env)
    assert result.returncode == 1
    assert "worker-1 has it already" in result.stderr
