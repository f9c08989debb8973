"""Target of a command: the InferFlux deployment that it talks to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferflux.api.tls import PLAIN_TEXT, Tls

from .errors import CommandError
from .state_dir import StackState


@dataclass(frozen=True, slots=True)
class Target:
    """Gateways and the key for them.

    Attributes:
        endpoint: host:port of each, comma-separated.
        tls: how to speak TLS with it, if at all.
    """

    endpoint: str
    api_key: str
    tls: Tls = PLAIN_TEXT


def resolve(
    *, endpoint: str, api_key: str, env: Mapping[str, str], local: Callable[[], StackState | None]
) -> Target:
    """Flags before INFERFLUX_ENDPOINT and INFERFLUX_API_KEY before the stack that runs on this machine.

    The local stack's key is used for the local stack alone: it is never sent to another address.

    Raises:
        CommandError: no endpoint, one that is a URL, or no key for it.
    """
    endpoint = endpoint or env.get("INFERFLUX_ENDPOINT", "")
    if endpoint.startswith(("http://", "https://")):
        raise CommandError(
            f"{endpoint} is a URL: name the gateway's gRPC port as host:port, such as 127.0.0.1:50051"
        )
    api_key = api_key or env.get("INFERFLUX_API_KEY", "")
    tls = Tls.from_env(env)
    if endpoint and api_key:
        return Target(endpoint, api_key, tls)
    stack = local()
    if not endpoint:
        if stack is None:
            raise CommandError(
                "no InferFlux runs here: start one with `inferctl up`, "
                "or name one with --endpoint, INFERFLUX_ENDPOINT or, where it has its own, --state-dir"
            )
        return Target(stack.endpoint, api_key or stack.api_key, stack.tls)
    if stack is not None and set(_addresses(endpoint)) <= set(_addresses(stack.endpoint)):
        return Target(endpoint, stack.api_key, stack.tls)
    raise CommandError(f"no API key for {endpoint}: give --api-key or set INFERFLUX_API_KEY")


def _addresses(endpoint: str) -> list[str]:
    return [address.strip() for address in endpoint.split(",") if address.strip()]
