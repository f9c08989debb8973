"""Metrics that more than one service has, and the buckets all of them share.

A service's own metrics live with it; this is the one home of names and buckets that dashboards compare
across services. Names and buckets are those of vLLM with the prefix `inferflux_`, so that a dashboard
needs one edit. Labels are bounded: never a request id or a string of the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

TIME_TO_FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
# .01 doubling to 81.92
REQUEST_BUCKETS_S = tuple(0.01 * 2**i for i in range(14))


class Declare:
    """Makes metrics: their names begin with `inferflux_`, and all go to one registry.

    A name is given without that prefix, and a counter's without `_total`. What it counts or measures is a
    sentence of Markdown, for docs/operations.md and for `/metrics`.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry

    def counter(self, name: str, what: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"inferflux_{name}", what, labels, registry=self._registry)

    def gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"inferflux_{name}", what, labels, registry=self._registry)

    def histogram(
        self, name: str, what: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(f"inferflux_{name}", what, labels, buckets=buckets, registry=self._registry)


_of_every_service = Declare()

RPCS = _of_every_service.counter(
    "rpcs", "gRPC calls that ended, by method and status code.", ("method", "code")
)
BAD_HEADERS = _of_every_service.counter("grpc_bad_headers", "Header values of gRPC calls that are not UTF-8.")
UNEXPECTED_ERRORS = _of_every_service.counter(
    "unexpected_errors",
    "Errors that no code expected, by the part that caught them: each is a defect.",
    ("where",),
)
BUS_RECONNECTS = _of_every_service.counter("bus_reconnects", "Reconnects to NATS.")
BUS_BAD_MESSAGES = _of_every_service.counter(
    "bus_bad_messages",
    "Messages that were ignored: their reply subject cannot be answered (`reply_subject`), or they are no "
    "delivery of the work queue (`delivery`).",
    ("kind",),
)
BUS_MESSAGES_LOST = _of_every_service.counter(
    "bus_messages_lost",
    "Messages that were dropped because this process read them too slowly, by kind of subscription.",
    ("subscription",),
)
AUDIT_LINES = Counter("inferflux_audit_lines", "Lines of the audit trail that were written.")
AUDIT_LINES_LOST = Counter(
    "inferflux_audit_lines_lost", "Lines of the audit trail that were lost: too many waited to be written."
)
AUDIT_WRITE_ERRORS = Counter("inferflux_audit_write_errors", "Writes of the audit trail that failed.")
