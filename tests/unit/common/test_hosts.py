"""What a host may say of its models, and what is made of the reports of several."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inferflux.common.contract import subjects
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.messages.hosts import (
    LONGEST_HOST_ID,
    MAX_ALIASES,
    MAX_KNOWN,
    MOST_LOADED,
    as_model,
    parse_status,
    worker_ids,
)
from inferflux.common.contract.subjects import is_safe_token, matches
from inferflux.common.servers import nats_users
from inferflux.v1 import device_pb2, host_pb2, model_pb2

CPU_RANK = device_pb2.ExpertPlacement(device="CPU", kind=device_pb2.DEVICE_KIND_CPU)

SUBJECT = subjects.host_status("h")
READY, LOADING, FAILED = (
    model_pb2.MODEL_STATE_READY,
    model_pb2.MODEL_STATE_LOADING,
    model_pb2.MODEL_STATE_FAILED,
)


def hosted(name: str = "m", **fields: Any) -> host_pb2.HostedModel:
    card = model_pb2.ModelCard(name=name, digest="a" * 64, context_length=128, **fields.pop("card", {}))
    usual: dict[str, Any] = {"card": card, "state": READY, "worker_id": "h"}
    return host_pb2.HostedModel(**(usual | fields))


def status(*models: host_pb2.HostedModel, **fields: Any) -> host_pb2.HostStatus:
    usual: dict[str, Any] = {"host_id": "h", "incarnation": "i", "models_max": 8}
    return host_pb2.HostStatus(**(usual | fields), models=models or [hosted()])


def test_a_status_on_its_subject_is_read() -> None:
    said = status(hosted(), hosted("n", worker_id="h--1", aliases=["o"]), pool="p", memory_bytes=1 << 40)
    assert parse_status(said.SerializeToString(), SUBJECT) == said


MANY = [hosted(str(number), worker_id="") for number in range(MAX_KNOWN + 1)]
REFUSED: dict[str, tuple[host_pb2.HostStatus, str]] = {
    "another host's": (status(host_id="g", pool=""), "models.worker_id"),
    "on another subject": (status(hosted(worker_id=""), host_id="g"), "host_id"),
    "no host": (status(host_id=""), "host_id"),
    "a pattern": (status(host_id="*"), "host_id"),
    "no incarnation": (status(incarnation=""), "incarnation"),
    "a zone that could be none": (status(zone="a b"), "zone"),
    "a pool of two tokens": (status(pool="a.b"), "pool"),
    "nothing may be loaded": (status(models_max=0), "models_max"),
    "more than there are ids": (status(models_max=MOST_LOADED + 1), "models_max"),
    "memory of 2^64": (status(memory_bytes=2**64 - 1), "memory_bytes"),
    "free memory of 2^64": (status(memory_free_bytes=2**64 - 1), "memory_free_bytes"),
    "before the epoch": (status(started_unix_ms=-1), "started_unix_ms"),
    "idle for ever": (status(idle_s=math.inf), "idle_s"),
    "idle for nan": (status(idle_s=math.nan), "idle_s"),
    "a negative time": (status(idle_s=-1.0), "idle_s"),
    "too many models": (status(*MANY), "models"),
    "a model twice": (status(hosted(), hosted()), "models.name"),
    "no name": (status(hosted("")), "models.name"),
    "an odd digest": (
        status(host_pb2.HostedModel(card=model_pb2.ModelCard(name="m", digest="../x"), state=READY)),
        "models.digest",
    ),
    "a long quantization": (status(hosted(card={"quantization": "q" * 300})), "models.quantization"),
    "too many ranks": (
        status(hosted(card={"expert_ranks": [CPU_RANK] * 33})),
        "models.expert_ranks",
    ),
    "a rank of a long device": (
        status(hosted(card={"expert_ranks": [device_pb2.ExpertPlacement(device="d" * 300)]})),
        "models.expert_ranks.device",
    ),
    "a rank of no kind": (
        status(hosted(card={"expert_ranks": [device_pb2.ExpertPlacement(device="CPU")]})),
        "models.expert_ranks.kind",
    ),
    "no state": (status(hosted(state=model_pb2.MODEL_STATE_UNSPECIFIED)), "models.state"),
    "an unknown state": (status(hosted(state=77)), "models.state"),
    "a long reason": (status(hosted(reason="r" * 2000)), "models.reason"),
    "a long path": (status(hosted(path="/" * 5000)), "models.path"),
    "since long before": (status(hosted(since_unix_ms=-5)), "models.since_unix_ms"),
    "another host's worker": (status(hosted(worker_id="w")), "models.worker_id"),
    "an odd worker": (status(hosted(worker_id="h.>")), "models.worker_id"),
    "it needs 2^64": (status(hosted(needs_bytes=2**64 - 1)), "models.needs_bytes"),
    "loaded in nan": (status(hosted(load_s=math.nan)), "models.load_s"),
    "too many aliases": (status(hosted(aliases=map(str, range(MAX_ALIASES + 1)))), "models.aliases"),
    "an empty alias": (status(hosted(aliases=[""])), "models.aliases"),
    "a long alias": (status(hosted(aliases=["ä" * 200])), "models.aliases"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_status_that_cannot_be_is_refused_by_name(name: str) -> None:
    said, field = REFUSED[name]
    with pytest.raises(InvalidArgument) as caught:
        parse_status(said.SerializeToString(), SUBJECT)
    assert caught.value.field == field


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
@example(b"", 0, 0)
def test_whatever_is_published_is_read_or_refused(noise: bytes, at: int, value: int) -> None:
    damaged = bytearray(status(hosted(), hosted("n", worker_id="", reason="r")).SerializeToString())
    damaged[at % len(damaged)] = value
    for data in (noise, bytes(damaged)):
        try:
            read = parse_status(data, SUBJECT)
        except InvalidArgument:
            continue
        assert read.host_id == "h"
        assert {model.worker_id for model in read.models} <= {"", *worker_ids("h")}
        for model in read.models:
            assert as_model({"h": model}).card.name == model.card.name


def test_every_worker_of_a_host_of_the_longest_name_can_stand_in_a_subject() -> None:
    ids = worker_ids("h" * LONGEST_HOST_ID)
    assert len(set(ids)) == MOST_LOADED
    assert all(map(is_safe_token, ids))


def test_a_worker_process_speaks_for_its_host_and_its_models_and_for_no_other() -> None:
    user = nats_users.worker("w")
    to_it = (subjects.worker_batch, subjects.worker_probe, subjects.worker_command)

    def may(patterns: tuple[str, ...], subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in patterns)

    assert may(user.publish, subjects.host_status("w"))
    assert may(user.subscribe, subjects.host_command("w"))
    for own in worker_ids("w"):
        assert may(user.publish, subjects.worker_status(own))
        assert all(may(user.subscribe, of(own)) for of in to_it)
    for other in ("v", "w2", "w--16", "w--01", "w-", "v--1"):
        assert not may(user.publish, subjects.host_status(other))
        assert not may(user.publish, subjects.worker_status(other))
        assert not may(user.subscribe, subjects.host_command(other))
        assert not any(may(user.subscribe, of(other)) for of in to_it)
    assert not may(user.publish, subjects.host_command("w"))
    assert not may(user.subscribe, subjects.HOST_STATUS_ALL)


def test_the_best_state_of_all_hosts_is_the_models_own() -> None:
    failed = hosted(state=FAILED, reason="why", worker_id="", aliases=["x"], is_pinned=True)
    loading = hosted(state=LOADING, aliases=["y", "x"], is_default=True)
    model = as_model({"b": failed, "a": loading})
    assert (model.state, model.reason, model.workers) == (LOADING, "", 0)
    assert (list(model.aliases), model.is_default, model.is_pinned) == (["x", "y"], True, True)
    assert [(p.host_id, p.state, p.reason) for p in model.places] == [
        ("a", LOADING, ""),
        ("b", FAILED, "why"),
    ]
    assert as_model({"b": failed}).reason == "why"
    assert as_model({"a": hosted(), "b": hosted()}).workers == 2
