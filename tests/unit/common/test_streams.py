"""What is said of a stream that JetStream does not make."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from inferflux.common.bus import streams
from inferflux.common.bus.link import STORE_UNAVAILABLE, ApiError
from inferflux.common.contract.errors import Unavailable
from inferflux.common.contract.requests.stream_limits import StreamLimits

_INSUFFICIENT_RESOURCES = 10023


def link(*, is_clustered: bool) -> Any:
    async def api(operation: str, _body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        raise ApiError(operation, 503, _INSUFFICIENT_RESOURCES, "insufficient resources")

    return SimpleNamespace(api=api, is_clustered=is_clustered, makes_streams=True)


async def test_what_a_server_alone_lacks_is_room_and_no_servers() -> None:
    with pytest.raises(Unavailable) as caught:
        await streams.ensure_streams(link(is_clustered=False), StreamLimits())
    assert caught.value.reason == STORE_UNAVAILABLE


async def test_what_a_cluster_lacks_for_the_copies_asked_for_is_servers() -> None:
    with pytest.raises(Unavailable, match="INFERFLUX_NATS_REPLICAS") as caught:
        await streams.ensure_streams(link(is_clustered=True), StreamLimits(replicas=3))
    assert caught.value.reason == "TOO_FEW_SERVERS"
