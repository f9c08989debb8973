"""The status of hundreds of workers in pages. No I/O.

A page has workers and hosts, each in the order of their ids. Its token names the last one of either. So
each that stays is told once, whatever comes and goes between two pages. All else is whole in every page.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.contract import checks
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.pages import page_after
from inferflux.v1 import cluster_pb2, scheduler_pb2

_BETWEEN = "/"


@dataclass(frozen=True, slots=True)
class Place:
    """The last worker and the last host that were told; empty: none yet."""

    worker_id: str = ""
    host_id: str = ""

    @property
    def token(self) -> str:
        return f"{self.worker_id}{_BETWEEN}{self.host_id}"


def parse_token(token: str) -> Place:
    """Where the page of this token begins.

    Raises:
        InvalidArgument: no page has ended with it.
    """
    if not token:
        return Place()
    worker_id, slash, host_id = token.partition(_BETWEEN)
    try:
        for id_ in filter(None, (worker_id, host_id)):
            checks.check_token(id_, "page_token")
    except InvalidArgument:
        slash = ""
    if not slash or not (worker_id or host_id):
        raise InvalidArgument("this page_token was not given by GetStatus", field="page_token")
    return Place(worker_id, host_id)


def cut(response: cluster_pb2.GetStatusResponse, place: Place, size: int) -> None:
    """Leave the workers and hosts of one page in a response.

    Args:
        response: it has all hosts that live. Where more workers than `size` come after the place, it has one
            more of them, at least.
        size: of the page; 0: all that is left.
    """
    response.host_count = len(response.hosts)
    hosts, more_hosts = page_after(response.hosts, lambda host: host.host_id, place.host_id or None, size)
    by_id = sorted(response.scheduler.workers, key=_worker_id)
    workers, more_workers = page_after(by_id, _worker_id, place.worker_id or None, size)
    if more_workers or more_hosts:
        response.next_page_token = Place(
            _worker_id(workers[-1]) if workers else place.worker_id,
            hosts[-1].host_id if hosts else place.host_id,
        ).token
    del response.hosts[:]
    response.hosts.extend(hosts)
    if response.HasField("scheduler"):
        del response.scheduler.workers[:]
        response.scheduler.workers.extend(workers)


def _worker_id(view: scheduler_pb2.WorkerView) -> str:
    return view.status.worker_id
