"""Every method that gateway and policy serve, as reflection would list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from inferflux.common.calls.service_key import SERVICE
from inferflux.gateway.grpc.rules import rules as gateway_rules
from inferflux.gateway.http.front.routes import ADMIN
from inferflux.policy.rules import RULES as POLICY_RULES
from inferflux.v1 import admin_pb2, cluster_pb2, embedding_pb2, inference_pb2, model_pb2, policy_pb2

_OPEN = (health_pb2, reflection_pb2)
_FILES = {
    "gateway": (inference_pb2, embedding_pb2, model_pb2, cluster_pb2, admin_pb2, policy_pb2, *_OPEN),
    "policy": (policy_pb2, *_OPEN),
}
_RULES = {"gateway": gateway_rules(1000), "policy": POLICY_RULES}


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC.

    Attributes:
        server: "gateway" or "policy".
        kind: of grpc.aio's methods of a channel, such as "unary_stream".
    """

    server: str
    path: str
    kind: str
    request: Callable[[], Message]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def is_audited(self) -> bool:
        """Return whether each call has an audit line of its own id.

        Calls of services and of strangers have none. That of Resume has the id of the request it resumes.
        """
        rule = _RULES[self.server].get(self.path)
        return rule is not None and rule.scope not in ("", SERVICE) and self.name != "Resume"

    @property
    def is_over_http(self) -> bool:
        """Return whether administrators call it over HTTP too."""
        return self.server == "gateway" and self.name in ADMIN


def methods() -> list[Method]:
    """All of them."""
    return [
        method
        for server, files in _FILES.items()
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in _of(server, service)
    ]


def _of(server: str, service: ServiceDescriptor) -> Iterator[Method]:
    for method in service.methods:
        asks = "stream" if method.client_streaming else "unary"
        answers = "stream" if method.server_streaming else "unary"
        path = f"/{service.full_name}/{method.name}"
        if server == "gateway" and service.name == "PolicyService" and path not in _RULES[server]:
            continue  # what services call, it does not pass on
        yield Method(server, path, f"{asks}_{answers}", GetMessageClass(method.input_type))
