"""Target of a command: the InferFlux deployment that it talks to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
    *,
    endpoint: str,
    api_key: str,
    env: Mapping[str, str],
    local: Callable[[], StackState | None],
    tls_ca: str = "",
) -> Target:
    """Flags before INFERFLUX_ENDPOINT and INFERFLUX_API_KEY before the stack that runs on this machine.

    The local stack's key is used for the local stack alone: it is never sent to another address.

    Args:
        tls_ca: of the flag, before that of the local stack, which comes before INFERFLUX_TLS_CA.

    Raises:
        CommandError: no endpoint, a URL, no key for it, or a CA for a stack that speaks plain text.
    """
    endpoint = endpoint or env.get("INFERFLUX_ENDPOINT", "")
    if endpoint.startswith(("http://", "https://")):
        raise CommandError(
            f"{endpoint} is a URL: name the gateway's gRPC port as host:port, such as 127.0.0.1:50051"
        )
    api_key = api_key or env.get("INFERFLUX_API_KEY", "")
    tls = Tls.from_env(env)
    if tls_ca:
        tls = replace(tls, ca=tls_ca)
    if endpoint and api_key:
        return Target(endpoint, api_key, tls)
    stack = local()
    if not endpoint:
        if stack is None:
            raise CommandError(
                "no InferFlux runs here: start one with `inferctl up`, "
                "or name one with --endpoint, INFERFLUX_ENDPOINT or, where it has its own, --state-dir"
            )
        return Target(stack.endpoint, api_key or stack.api_key, _of_stack(stack, tls if tls_ca else None))
    if stack is not None and set(_addresses(endpoint)) <= set(_addresses(stack.endpoint)):
        return Target(endpoint, stack.api_key, _of_stack(stack, tls if tls_ca else None))
    raise CommandError(f"no API key for {endpoint}: give --api-key or set INFERFLUX_API_KEY")


def _of_stack(stack: StackState, asked: Tls | None) -> Tls:
    if asked is not None and not stack.tls.is_on:
        raise CommandError("the stack here speaks plain text: leave --tls-ca out, or start it with --tls")
    return asked or stack.tls


def _addresses(endpoint: str) -> list[str]:
    return [address.strip() for address in endpoint.split(",") if address.strip()]
