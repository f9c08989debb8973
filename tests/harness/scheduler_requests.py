"""Small worlds of the scheduler, and what tests do in them."""

from __future__ import annotations

from harness.scheduler_world import World, make_request

from inferflux.scheduler.core.lifecycle.fairness import FairnessSettings
from inferflux.scheduler.core.types.jobs import JobState, RequestKey
from inferflux.scheduler.core.types.limits import Limits

PREEMPTING = FairnessSettings(enable_preemption=True, high_priority_threshold=5)
SLICING = FairnessSettings(max_timeslice_tokens=3)


def make_world(
    fairness: FairnessSettings = PREEMPTING, *, ordinary_share: float = 0.25, **limits: float
) -> World:
    bounds = Limits(settle_s=0.0, **limits)  # type: ignore[arg-type]
    world = World(bounds, fairness=fairness, ordinary_share=ordinary_share)
    world.pass_time(0.1)
    return world


def submit(
    world: World,
    request_id: str,
    *,
    priority: int = 0,
    max_tokens: int = 20,
    prompt: int = 4,
    deadline: float = 0.0,
) -> RequestKey:
    key = world.submit(
        make_request(
            request_id,
            at=world.now,
            priority=priority,
            max_tokens=max_tokens,
            prompt=prompt,
            deadline=deadline,
        )
    )
    world.settle()
    return key


def state_of(world: World, key: RequestKey) -> JobState:
    return world.core.jobs[key].state


def finish(world: World) -> None:
    world.live(200)
    world.check()
    world.check_quiet()


def epochs(world: World, key: RequestKey) -> set[int]:
    return {chunk.epoch for chunk in world.clients[key]}
