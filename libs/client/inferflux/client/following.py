"""One request, over as many calls as it takes: which call follows one that failed. No I/O, no clock.

A request with a resume window goes on while its connection is lost. Resume takes its stream up again, at
whatever gateway answers, from the first token that is missing. A call that was lost before its first chunk
may have arrived or not. So the request is resumed, and sent again under its id only when no gateway knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferflux.api.errors import (
    AlreadyExists,
    Cancelled,
    DeadlineExceeded,
    InferFluxError,
    NotFound,
    Unavailable,
    from_failed,
)
from inferflux.api.stream_state import StreamState, Verdict
from inferflux.v1 import tokens_pb2

from .requests import new_request_id
from .retrying import Retrying, never_connected

# Between two calls that try to take a stream up again.
RESUME_PAUSE_S = 0.3
# UNAVAILABLE that is the end of the request.
_ENDED = frozenset({"NO_WORKER", "RETRIES_EXHAUSTED", "REFUSED"})
# UNAVAILABLE that no other call can help against.
_FINAL = _ENDED | {"SILENT", "TOKENS_LOST"}
# UNAVAILABLE after which the request may run all the same; the first is what gRPC's own errors have.
_UNKNOWN = frozenset({"UNAVAILABLE", "OUTCOME_UNKNOWN", "GATEWAY_DRAINING"})


@dataclass(frozen=True, slots=True)
class Step:
    """The next call of a request.

    Attributes:
        resumes_at: tokens that are here already, for a Resume; None sends the request.
        delay_s: how long to wait before it.
        moves: whether it goes to the next gateway.
    """

    resumes_at: int | None = None
    delay_s: float = 0.0
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of the tries to complete a stream.

    Attributes:
        window_s: how long a lost stream is tried for; 0: it is an error at once.
        retries: how often a refused request may wait for another try.
        deadline_s: when the whole must be complete, by the caller's monotonic clock; None for no deadline.
    """

    window_s: int = 30
    retries: int = 2
    deadline_s: float | None = None


class Following:
    """Client's state of a request, over all its calls and tries.

    Args:
        request_id: the caller's own; empty draws one, and another one for each new try of the request.
        offset: for a request that another client made: tokens the caller has. None for a request to be sent.

    Attributes:
        idempotency_key: drawn for each request id: gateways know by it that a request is sent again.
        is_over: nothing more comes.
        resumes: how often a lost stream went on.
    """

    def __init__(
        self,
        patience: Patience,
        *,
        n_gateways: int = 1,
        request_id: str = "",
        offset: int | None = None,
        new_id: Callable[[], str] = new_request_id,
    ) -> None:
        self.request_id = request_id or new_id()
        self.idempotency_key = new_request_id()
        self.is_over = False
        self.resumes = 0
        self.is_own = offset is None
        self._new_id = None if request_id else new_id
        self._patience = patience
        self._retrying = Retrying(patience.retries, n_gateways)
        self._state = StreamState(offset or 0)
        self._has_begun = False
        self._lost_s: float | None = None
        # Whether it was given up, and may go on.
        self._is_given_up = False

    @property
    def first(self) -> Step:
        """The call to begin with."""
        return self._begin()

    @property
    def is_known(self) -> bool:
        """True if a chunk has come: the request is with the scheduler."""
        return self._has_begun

    @property
    def must_be_cancelled(self) -> bool:
        """True if the request goes on when its connection ends."""
        may_run = not self.is_over or self._is_given_up
        return self.is_own and may_run and self._patience.window_s > 0

    @property
    def window_s(self) -> int:
        """Seconds for which the request goes on without a reader."""
        return self._patience.window_s

    def take(self, chunk: tokens_pb2.TokenChunk) -> bool:
        """True if a chunk says something new; the chunk is cut to that.

        Raises:
            InferFluxError: the generation failed, or tokens before the chunk are missing.
        """
        verdict = self._state.offer(chunk)
        if verdict is Verdict.GAP:
            missing = f"tokens {self._state.next_offset} to {chunk.offset - 1} are missing"
            raise Unavailable(missing, reason="TOKENS_MISSING")
        if self._lost_s is not None:
            self._lost_s = None
            self.resumes += 1
        self._has_begun = True
        if verdict is Verdict.ACCEPT and chunk.HasField("failed"):
            raise from_failed(chunk.failed)
        self.is_over = self._state.is_ended
        return verdict is Verdict.ACCEPT

    def after(self, error: InferFluxError, now_s: float) -> Step:
        """The call that follows one that ended with this error.

        Raises:
            InferFluxError: the error itself, where no call can help. Nothing more comes then; the request may
                have to be cancelled.
        """
        step = self._step(error, now_s)
        deadline_s = self._patience.deadline_s
        is_late = deadline_s is not None and step is not None and now_s + step.delay_s >= deadline_s
        if step is None or is_late:
            self.is_over = True
            self._is_given_up = not is_late and self._may_go_on(error)
            raise error
        return step

    def time_left_s(self, now_s: float) -> float | None:
        """Seconds until the deadline, for the next call."""
        deadline_s = self._patience.deadline_s
        return None if deadline_s is None else max(0.001, deadline_s - now_s)

    def end(self) -> None:
        """The reader leaves."""
        self.is_over = True
        self._is_given_up = False

    def _may_go_on(self, error: InferFluxError) -> bool:
        """True if the request may run after an error that ends its stream. Its deadline ends it anyway."""
        is_ended = self._state.is_ended or error.reason in _ENDED
        if is_ended or isinstance(error, DeadlineExceeded | NotFound):
            return False
        return self._has_begun or self._lost_s is not None

    def _step(self, error: InferFluxError, now_s: float) -> Step | None:
        if self._state.is_ended or error.reason in _FINAL:
            return self._ask_anew(error)
        if self._has_begun or self._lost_s is not None:
            return self._take_up(error, now_s)
        if never_connected(error):
            return self._ask_again(error, is_same=True)
        if _may_be_accepted(error):
            return self._take_up(error, now_s)
        return self._ask_again(error, is_same=False)

    def _take_up(self, error: InferFluxError, now_s: float) -> Step | None:
        """Resume a request that may run; send it again only when no gateway knows it."""
        is_first = self._lost_s is None
        lost_s = now_s if self._lost_s is None else self._lost_s
        self._lost_s = lost_s
        if self._patience.window_s <= 0 or not _may_pass(error) or now_s - lost_s > self._patience.window_s:
            return None
        is_unknown = isinstance(error, NotFound) and self.is_own and not self._has_begun
        return Step(
            None if is_unknown else self._state.next_offset,
            0.0 if is_first else RESUME_PAUSE_S,
            moves=isinstance(error, Cancelled | Unavailable),
        )

    def _ask_anew(self, error: InferFluxError) -> Step | None:
        """Ask again after a request that failed; never when a part of an answer is here."""
        has_delay = isinstance(error, Unavailable) and error.retry_delay_s is not None
        if not has_delay or self._new_id is None or not self.is_own or self._state.next_offset:
            return None
        return self._ask_again(error, is_same=False)

    def _ask_again(self, error: InferFluxError, *, is_same: bool) -> Step | None:
        """Send a request again that does not run."""
        again = self._retrying.after(error)
        if again is None:
            return None
        if self._new_id is not None and not is_same:
            self.request_id = self._new_id()
            self.idempotency_key = new_request_id()
        if self.is_own:
            self._state = StreamState()
        self._has_begun = False
        return self._begin(again.delay_s, moves=again.moves)

    def _begin(self, delay_s: float = 0.0, *, moves: bool = False) -> Step:
        return Step(None if self.is_own else self._state.next_offset, delay_s, moves)


def _may_be_accepted(error: InferFluxError) -> bool:
    """True if a request may run whose first call ended with this error, without a chunk.

    What the gateway refuses it gives a reason for. gRPC says by itself that a connection was lost.
    """
    return isinstance(error, Cancelled) or (isinstance(error, Unavailable) and error.reason in _UNKNOWN)


def _may_pass(error: InferFluxError) -> bool:
    """True if the stream can be resumed: the connection or the gateway was lost, not the request.

    A gateway that just started may not know the request for a moment. A request that was sent again is taken
    already when it was accepted after all.
    """
    return isinstance(error, AlreadyExists | Cancelled | NotFound) or (
        isinstance(error, Unavailable) and error.reason not in _FINAL
    )
