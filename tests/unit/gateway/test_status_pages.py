"""The pages of a status are the status, whichever scheduler leads which of the workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.common.bus.scheduler_status import small_pools, together
from inferflux.common.contract.errors import InvalidArgument
from inferflux.gateway.operator.status_pages import Place, cut, parse_token
from inferflux.v1 import cluster_pb2, scheduler_pb2

ids = st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=12)


def of_workers(worker_ids: list[str], after: str, size: int) -> scheduler_pb2.SchedulerStatus:
    """What a scheduler of these workers says of a page."""
    told = sorted(each for each in worker_ids if each > after)[: size or None]
    status = scheduler_pb2.SchedulerStatus(running=1, partition="all")
    status.worker_totals.workers = len(worker_ids)
    for worker_id in told:
        status.workers.add().status.worker_id = worker_id
    return status


def page_of(
    place: Place, size: int, workers: list[list[str]], hosts: list[str]
) -> cluster_pb2.GetStatusResponse:
    statuses = [of_workers(each, place.worker_id, size and size + 1) for each in workers]
    response = cluster_pb2.GetStatusResponse(
        scheduler=together(statuses),
        hosts=[cluster_pb2.HostSummary(host_id=host_id) for host_id in sorted(hosts)],
    )
    cut(response, place, size)
    return response


@given(ids, ids, st.integers(0, 4), st.data())
def test_every_worker_and_every_host_is_told_once_and_totals_are_of_all(
    workers: list[str], hosts: list[str], size: int, data: st.DataObject
) -> None:
    first = data.draw(st.sets(st.sampled_from(workers))) if workers else set()
    led = [[each for each in workers if (each in first) is is_first] for is_first in (True, False)]
    told_workers: list[str] = []
    told_hosts: list[str] = []
    token = ""
    while True:
        page = page_of(parse_token(token), size, led, hosts)
        assert page.scheduler.worker_totals.workers == len(workers)
        assert (page.host_count, page.scheduler.running) == (len(hosts), 2)
        assert not size or max(len(page.scheduler.workers), len(page.hosts)) <= size
        told_workers += [view.status.worker_id for view in page.scheduler.workers]
        told_hosts += [host.host_id for host in page.hosts]
        if not (token := page.next_page_token):
            break
    assert told_workers == sorted(workers)
    assert told_hosts == sorted(hosts)


def test_without_a_scheduler_hosts_are_told_in_pages_and_none_is_made_up() -> None:
    response = cluster_pb2.GetStatusResponse(
        hosts=[cluster_pb2.HostSummary(host_id=host_id) for host_id in ("a", "b", "c")]
    )
    cut(response, Place(), 2)
    assert not response.HasField("scheduler")
    assert [host.host_id for host in response.hosts] == ["a", "b"]
    assert parse_token(response.next_page_token) == Place("", "b")


@pytest.mark.parametrize("token", ["/", "a", "a b/c", "a/b/c", "ä/b", "a" * 65 + "/b"])
def test_a_token_that_no_page_ended_with_is_refused_by_name(token: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_token(token)
    assert refused.value.field == "page_token"


def test_pools_of_all_partitions_together_are_as_large_as_each_leader_expects() -> None:
    decode, prefill = scheduler_pb2.WORKER_ROLE_DECODE, scheduler_pb2.WORKER_ROLE_PREFILL
    led = [
        [scheduler_pb2.PoolStatus(role=decode, ready=1, expected=3)],
        [
            scheduler_pb2.PoolStatus(role=decode, ready=1, expected=3),
            scheduler_pb2.PoolStatus(role=prefill, ready=2, expected=2),
        ],
    ]
    whole = together([scheduler_pb2.SchedulerStatus(partition=f"{i}-of-2", pools=led[i]) for i in range(2)])
    assert [(pool.role, pool.ready, pool.expected) for pool in whole.pools] == [
        (decode, 2, 3),
        (prefill, 2, 2),
    ]
    assert small_pools(whole) == {"decode pool not ready": "2 of 3 workers"}
