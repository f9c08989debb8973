"""Retries of refused calls. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.api.errors import InferFluxError, Unavailable

GATEWAY_LOST = "GATEWAY_LOST"
"""Reason of an error that says that the connection of a call is gone."""
# What gRPC says when it could not send a call at all.
_NO_ANSWER = ("failed to connect", "connections to all backends failing")
_NEVER_CONNECTED = (*_NO_ANSWER, "DNS resolution", "errors resolving")
# What it says of a connection that was there, and is gone.
_LOST = (
    *("Stream removed", "Socket closed", "Connection reset", "Broken pipe", "Connection timed out"),
    *("recvmsg", "sendmsg", "keepalive", "ping timeout", "GOAWAY", "transport is closing"),
    "Too many pings",
)
# What gRPC says of servers that speak something else, and what we say.
_OTHER_LANGUAGES = {
    "http1.x": "{} speaks HTTP/1 and not gRPC: is it the HTTP port?",
    "Socket closed": "{} closes the connection at once: does it speak TLS (INFERFLUX_TLS_CA)?",
    "CERTIFICATE_VERIFY_FAILED": "{} shows a certificate of another CA than is trusted (INFERFLUX_TLS_CA)",
}
# The first wait where an error names none; each further one takes twice as long.
_FIRST_DELAY_S = 0.5
# A limit of a minute may be waited for, the quota of a day may not.
_LONGEST_DELAY_S = 90.0


@dataclass(frozen=True, slots=True)
class Again:
    """A call is worth another try.

    Attributes:
        delay_s: how long to wait before it.
        moves: whether it goes to the next gateway.
    """

    delay_s: float
    moves: bool


class Retrying:
    """Counts the tries of one call.

    A gateway that cannot serve is left for the next one at once. When all were asked, the call waits: for as
    long as the error says, else a little longer each time. What takes longer than 90 s is not waited for.

    Args:
        retries: how often the call may wait.
        n_gateways: how many there are to ask.
    """

    def __init__(self, retries: int, n_gateways: int) -> None:
        self._retries = retries
        self._n_gateways = n_gateways
        self._n_asked = 1
        self._n_waits = 0

    def after(self, error: InferFluxError) -> Again | None:
        """Next try after a refusal; None where it is final."""
        is_away = isinstance(error, Unavailable)
        if not is_away and error.retry_delay_s is None:
            return None
        if is_away and self._n_asked < self._n_gateways:
            self._n_asked += 1
            return Again(0.0, moves=True)
        if self._n_waits >= self._retries or (error.retry_delay_s or 0.0) > _LONGEST_DELAY_S:
            return None
        self._n_waits += 1
        self._n_asked = 1
        own_s = float(_FIRST_DELAY_S * 2 ** (self._n_waits - 1))
        return Again(own_s if error.retry_delay_s is None else error.retry_delay_s, moves=is_away)


def never_connected(error: InferFluxError) -> bool:
    """True if a call certainly did not arrive: nothing answers there."""
    return isinstance(error, Unavailable) and error.message.startswith(_NEVER_CONNECTED)


def was_lost(error: InferFluxError) -> bool:
    """True if the connection of a call is gone: its gateway was killed, or cannot be reached any more."""
    is_grpc = isinstance(error, Unavailable) and error.reason == Unavailable.default_reason
    return is_grpc and not never_connected(error) and any(words in error.message for words in _LOST)


def readable(error: InferFluxError, address: str) -> InferFluxError:
    """gRPC's own words for "nothing answers" and for a connection that is gone are about sockets."""
    if was_lost(error):
        return Unavailable(
            f"the connection to {address} was lost: its gateway has ended, or the network has failed",
            reason=GATEWAY_LOST,
            retry_delay_s=None,
        )
    if not never_connected(error):
        return error
    if error.message.startswith(_NO_ANSWER):
        found = (said for words, said in _OTHER_LANGUAGES.items() if words in error.message)
        return Unavailable(next(found, "nothing answers at {}").format(address), retry_delay_s=None)
    return Unavailable(f"{address}: no such host", retry_delay_s=None)
