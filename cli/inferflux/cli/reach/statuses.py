"""Answers of several gateways, and pages, as one status."""

from __future__ import annotations

from collections.abc import Sequence

from inferflux.common.contract.errors import InferFluxError
from inferflux.v1 import cluster_pb2

# What a gateway calls itself in its status.
_GATEWAY = "gateway"


def merged_status(
    answers: Sequence[cluster_pb2.GetStatusResponse | InferFluxError],
) -> cluster_pb2.GetStatusResponse:
    """Merge the answers of several gateways: the rows of all, and the rest from the first that answered."""
    merged = cluster_pb2.GetStatusResponse()
    merged.CopyFrom(next(answer for answer in answers if isinstance(answer, cluster_pb2.GetStatusResponse)))
    others = [service for service in merged.services if service.name != _GATEWAY]
    rows: list[cluster_pb2.ServiceStatus] = []
    for answer in answers:
        if isinstance(answer, InferFluxError):
            rows.append(cluster_pb2.ServiceStatus(name=_GATEWAY, detail=answer.message))
        else:
            rows += [service for service in answer.services if service.name == _GATEWAY]
    del merged.services[:]
    merged.services.extend([*rows, *others])
    return merged


def joined_status(pages: Sequence[cluster_pb2.GetStatusResponse]) -> cluster_pb2.GetStatusResponse:
    """The workers and hosts of all pages; the rest as the last page has it. Where the scheduler did not
    answer for one page, the whole has no scheduler: some workers would be missing."""
    whole = cluster_pb2.GetStatusResponse()
    whole.CopyFrom(pages[-1])
    if len(pages) == 1:
        return whole
    del whole.hosts[:], whole.scheduler.workers[:]
    for page in pages:
        whole.hosts.extend(page.hosts)
        whole.scheduler.workers.extend(page.scheduler.workers)
        # Of a partition that did not answer, this page has no workers.
        whole.scheduler.not_ready = whole.scheduler.not_ready or page.scheduler.not_ready
    if not all(page.HasField("scheduler") for page in pages):
        whole.ClearField("scheduler")
    return whole
