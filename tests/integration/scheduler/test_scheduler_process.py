"""The scheduler process between a real nats-server and workers that follow a script."""

from __future__ import annotations

from harness.scheduler_stage import Stage

from inferflux.v1 import scheduler_pb2


async def test_a_job_goes_to_a_worker_and_is_acknowledged_at_its_end(stage: Stage) -> None:
    worker = await stage.add_worker("w1")
    await stage.submit("one")
    item = await worker.has("one")
    assert (item.request.tenant, list(item.request.prompt_token_ids)) == (stage.tenant, [1, 2, 3])
    running = await stage.status(lambda s: s.running == 1)
    assert [slot.request_id for slot in running.workers[0].slots if slot.state == "running"] == ["one"]
    await worker.emit("one", 3, is_last=True)
    await stage.is_quiet(workers=1)
    assert (await stage.read("one")).token_ids == [0, 1, 2]
    assert await stage.cancel("one") is False


async def test_urgent_jobs_overtake_waiting_ones_which_are_told_their_place(stage: Stage) -> None:
    worker = await stage.add_worker("w1", slots=1)
    await stage.submit("first")
    await worker.has("first")
    await stage.submit("ordinary")
    await stage.status(lambda s: s.queued == 1)
    await stage.submit("urgent", priority=9)
    await stage.status(lambda s: s.queued == 2)
    queued = [c.queued.position for c in await stage.chunks("ordinary") if c.HasField("queued")]
    assert queued == [0]
    await worker.emit("first", 1, is_last=True)
    await worker.has("urgent")
    assert "ordinary" not in worker.items
    await worker.emit("urgent", 1, is_last=True)
    await worker.has("ordinary")
    await worker.emit("ordinary", 1, is_last=True)
    await stage.is_quiet(workers=1)


async def test_a_dead_workers_request_goes_on_elsewhere_where_it_stopped(stage: Stage) -> None:
    first = await stage.add_worker("w1")
    await stage.submit("moved")
    await first.has("moved")
    await first.emit("moved", 3)
    second = await stage.add_worker("w2")
    await first.vanish()
    item = await second.has("moved")
    assert list(item.request.generated_token_ids) == [0, 1, 2]
    assert item.request.epoch > 1
    await second.emit("moved", 2, is_last=True)
    emitted = await stage.read("moved")
    assert emitted.token_ids == [0, 1, 2, 3, 4]
    await stage.is_quiet(workers=1)


async def test_a_request_that_kills_two_engines_is_failed_and_its_neighbour_is_not(stage: Stage) -> None:
    worker = await stage.add_worker("w1")
    await stage.submit("poison")
    await worker.has("poison")
    await stage.submit("bystander")
    await worker.has("bystander")
    await worker.die_engine()
    assert (await worker.has("poison")).token_budget == 8
    assert list(worker.items) == ["poison"]
    await worker.die_engine()
    assert (await stage.read("poison")).outcome == "POISON_REQUEST"
    failed = (await stage.chunks("poison"))[-1].failed
    assert "poison" in failed.message
    await worker.has("bystander")
    await worker.emit("bystander", 1, is_last=True)
    assert (await stage.read("bystander")).outcome == "stop"
    await stage.is_quiet(workers=1)


async def test_a_queued_request_is_cancelled_by_the_scheduler_a_running_one_by_its_worker(
    stage: Stage,
) -> None:
    worker = await stage.add_worker("w1", slots=1)
    await stage.submit("running")
    await worker.has("running")
    await stage.submit("queued")
    await stage.status(lambda s: s.queued == 1)
    assert await stage.cancel("queued") is True
    assert (await stage.read("queued")).outcome == "cancelled"
    assert await stage.cancel("running") is True
    assert (await stage.read("running")).outcome == "cancelled"
    assert await stage.cancel("unknown") is False
    await stage.is_quiet(workers=1)
    for request_id in ("queued", "running"):
        ends = [c for c in await stage.chunks(request_id) if c.HasField("finished")]
        assert len(ends) == 1


async def test_a_killed_schedulers_successor_adopts_what_runs_and_keeps_what_waits(own_stage: Stage) -> None:
    worker = await own_stage.add_worker("w1", slots=1)
    await own_stage.submit("running")
    epoch = (await worker.has("running")).request.epoch
    await worker.emit("running", 2)
    await own_stage.submit("waiting")
    await own_stage.status(lambda s: s.queued == 1)
    own_stage.kill_scheduler()
    await worker.emit("running", 1)
    await own_stage.start_scheduler()
    await own_stage.status(lambda s: s.running == 1 and s.queued == 1)
    assert worker.dropped == []
    assert worker.items["running"].request.epoch == epoch
    await worker.emit("running", 1, is_last=True)
    await worker.has("waiting")
    await worker.emit("waiting", 1, is_last=True)
    assert (await own_stage.read("running")).token_ids == [0, 1, 2, 3]
    assert (await own_stage.read("waiting")).token_ids == [0]
    await own_stage.is_quiet(workers=1)


async def test_what_ended_while_no_scheduler_lived_is_not_run_again(own_stage: Stage) -> None:
    worker = await own_stage.add_worker("w1", slots=1)
    await own_stage.submit("done")
    await worker.has("done")
    own_stage.kill_scheduler()
    await worker.emit("done", 2, is_last=True)
    await own_stage.start_scheduler()
    await own_stage.submit("next")
    await worker.has("next")
    await worker.emit("next", 1, is_last=True)
    await own_stage.is_quiet(workers=1)
    assert "done" not in worker.items
    assert (await own_stage.read("done")).token_ids == [0, 1]


async def test_a_lost_ending_is_healed_by_the_heartbeat(stage: Stage) -> None:
    worker = await stage.add_worker("w1", slots=1)
    worker.is_mute = True
    await stage.submit("one")
    await worker.has("one")
    await worker.emit("one", 1, is_last=True)
    await stage.is_quiet(workers=1)


async def test_a_restarted_nats_server_loses_no_job_and_stops_no_running_request(own_stage: Stage) -> None:
    worker = await own_stage.add_worker("w1", slots=1)
    await own_stage.submit("running")
    await worker.has("running")
    await own_stage.submit("waiting")
    await own_stage.status(lambda s: s.queued == 1)
    own_stage.nats.restart()
    await own_stage.status(lambda s: s.running == 1 and s.queued == 1)
    assert worker.dropped == []
    await worker.emit("running", 2, is_last=True)
    item = await worker.has("waiting")
    assert item.request.request_id == "waiting"
    await worker.emit("waiting", 1, is_last=True)
    assert (await own_stage.read("waiting")).outcome == "stop"
    await own_stage.is_quiet(workers=1)


async def test_without_a_worker_a_request_ends_in_bounded_time(stage: Stage) -> None:
    await stage.submit("alone")
    emitted = await stage.read("alone", timeout_s=12)
    assert emitted.outcome == "NO_WORKER"
    failed = (await stage.chunks("alone"))[-1].failed
    assert (failed.code, failed.retry_delay_ms > 0) == (14, True)
    await stage.is_quiet(workers=0)


async def test_a_deadline_passes_in_the_queue_and_a_request_too_large_is_told_so(stage: Stage) -> None:
    worker = await stage.add_worker("w1", slots=1)
    await stage.submit("running")
    await worker.has("running")
    await stage.submit("late", deadline_in_s=0.5)
    assert (await stage.read("late", timeout_s=5)).outcome == "EXPIRED_IN_QUEUE"
    await stage.submit("huge", max_tokens=100_000)
    assert (await stage.read("huge", timeout_s=5)).outcome == "REQUEST_TOO_LARGE"
    await worker.emit("running", 1, is_last=True)
    await stage.is_quiet(workers=1)


async def test_bad_jobs_and_messages_are_ignored(stage: Stage) -> None:
    worker = await stage.add_worker("w1")
    await stage.enqueue("bad1", "demo", b"\xff\xff not a message")
    unnamed = scheduler_pb2.InferenceRequest(model="demo")
    await stage.enqueue("bad2", "demo", unnamed.SerializeToString())
    empty = scheduler_pb2.InferenceRequest(request_id="empty", tenant=stage.tenant, model="demo")
    await stage.enqueue("bad3", "demo", empty.SerializeToString())
    for subject in ("scheduler.events", "worker.w1.status", f"cancel.{stage.tenant}.x"):
        await stage.bus.publish(f"inferflux.v1.{subject}", b"\xff\xff")
    await stage.submit("good")
    await worker.has("good")
    await worker.emit("good", 1, is_last=True)
    await stage.is_quiet(workers=1)
    failed = (await stage.chunks("empty"))[-1].failed
    assert (failed.code, "prompt_token_ids" in failed.message) == (3, True)
