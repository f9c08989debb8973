"""Service config of a gRPC channel, as JSON: load balancing over gateways, and retries.

Addresses that a name means take turns. A call that ended with UNAVAILABLE before anything came is made again,
at most three times in all, at the address whose turn it is: gRPC itself makes no call again of which headers
have come, and a gateway sends them when it has admitted the call.
"""

from __future__ import annotations

import json
from typing import Any

from inferflux.api.channel_options import CHANNEL_OPTIONS
from inferflux.v1 import cluster_pb2, embedding_pb2, inference_pb2, model_pb2

_RETRY = {
    "maxAttempts": 3,
    "initialBackoff": "0.2s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
# Calls that change something are not made again.
_READS = {
    inference_pb2: ("InferenceService", ("Tokenize", "Detokenize", "Resume", "Cancel")),
    embedding_pb2: ("EmbeddingService", ("Embed", "Rerank")),
    model_pb2: ("ModelService", ("ListModels", "GetModel")),
    cluster_pb2: ("ClusterService", ("GetStatus",)),
}
_GENERATES = ("Chat", "Generate")


def _names(*, with_generations: bool) -> list[dict[str, str]]:
    names = []
    for module, (service_name, methods) in _READS.items():
        service: Any = module.DESCRIPTOR.services_by_name[service_name]
        generates = _GENERATES if with_generations and service_name == "InferenceService" else ()
        names += [
            {"service": service.full_name, "method": service.methods_by_name[method].name}
            for method in (*generates, *methods)
        ]
    return names


def _config(*, with_generations: bool) -> str:
    names = _names(with_generations=with_generations)
    methods = [{"name": names, "retryPolicy": _RETRY}]
    return json.dumps({"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": methods})


SERVICE_CONFIG = _config(with_generations=True)
"""Service config for channels of your own, in any language: their option `grpc.service_config`."""

OWN_SERVICE_CONFIG = _config(with_generations=False)
"""Service config of this package's clients, which know more than gRPC of when a request may be sent again."""

# A gateway whose host is gone says nothing. It is given up 5 s after something was sent to it, a ping at the
# latest, so that its streams are resumed within their window. Gateways allow a ping every 3 s.
_PINGS = {"grpc.keepalive_time_ms": 12_000, "grpc.keepalive_timeout_ms": 5_000}

# A gateway closes a connection without calls after 10 s. With addresses in turns gRPC makes a closed one anew
# at once, and again every 10 s, and logs each: so the channel rests before. The next call connects.
_REST = {"grpc.client_idle_timeout_ms": 8_000}

OWN_OPTIONS = tuple(
    {**dict(CHANNEL_OPTIONS), **_PINGS, **_REST, "grpc.service_config": OWN_SERVICE_CONFIG}.items()
)
"""Options of their channels."""


if __name__ == "__main__":
    print(SERVICE_CONFIG)  # noqa: T201
