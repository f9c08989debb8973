"""Answers under constraints: held until their constraints are compiled, and while complete ones are checked.

The engine asks what has come of them before each step, and ends their sequences.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future

from inferflux.common.contract.errors import Internal, InvalidArgument
from inferflux.common.contract.requests.constraint_limits import asking_field_of
from inferflux.v1 import generation_pb2, scheduler_pb2
from inferflux.worker.engine.constraints.answer_checks import CheckerError, CheckError
from inferflux.worker.engine.constraints.constraints import CompiledConstraint, Constraints
from inferflux.worker.engine.plan.acceptance import finish_reason
from inferflux.worker.engine.plan.answer import PieceSource
from inferflux.worker.engine.plan.sequence import Sequence

from .parts import Outcome, Part


class ConstrainedAnswers(Part):
    """Constrained answers of an engine.

    Args:
        constraints: compiles; without it, no constraint is taken.
        pieces: the vocabulary that answers are spelled with.
    """

    def __init__(self, constraints: Constraints | None, pieces: PieceSource) -> None:
        self._constraints = constraints
        self._pieces = pieces
        self._compiling: dict[Sequence, CompiledConstraint] = {}
        # Of each complete answer, why it is not what was asked for.
        self._checking: dict[Sequence, Future[str]] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._checking)

    @property
    def holds(self) -> Collection[Sequence]:
        if not self._checking:
            return self._compiling
        return self._checking.keys() | self._compiling.keys()

    def begin(self, sequence: Sequence, request: scheduler_pb2.InferenceRequest) -> None:
        """Hold a sequence until its constraint is compiled.

        Raises:
            Internal: this engine compiles none.
        """
        if not request.params.HasField("constraint"):
            return
        if self._constraints is None:
            raise Internal("this engine cannot constrain answers", reason="CONSTRAINT_UNSUPPORTED")
        constraint = self._constraints.begin(request.params.constraint, request.generated_token_ids)
        sequence.answer.constraint = self._compiling[sequence] = constraint
        constraint.field = asking_field_of(request.params.constraint)

    def poll(self, now_s: float) -> Iterable[Outcome]:
        """Let sequences run whose constraints are compiled by now; returns those that end instead.

        The answer of one that another process has generated may be complete.
        """
        if not self._compiling and not self._checking:
            return ()
        ends: list[Outcome] = []
        for sequence, constraint in list(self._compiling.items()):
            if not constraint.settle(now_s):
                continue
            del self._compiling[sequence]
            if constraint.error:
                ends.append(Outcome(sequence, failure(sequence, constraint.error, "BAD_CONSTRAINT")))
            elif (constraint.is_over or _is_stopped(sequence)) and not self.check(sequence):
                ends.append(Outcome(sequence))
        done = [sequence for sequence, check in self._checking.items() if check.done()]
        return ends + [_verdict(sequence, self._checking.pop(sequence)) for sequence in done]

    def check(self, sequence: Sequence) -> bool:
        """Have a complete answer checked; returns whether that is to be waited for."""
        constraint = sequence.answer.constraint
        if constraint is None:
            return False
        tokens = sequence.tokens[sequence.prompt_tokens : sequence.n_tokens].tolist()
        text = b"".join(sequence.answer.piece(token, self._pieces) for token in tokens).decode(
            "utf-8", "replace"
        )
        check = constraint.check(text)
        if check is None:
            return False
        self._checking[sequence] = check
        return True

    def end(self, sequence: Sequence) -> None:
        self._compiling.pop(sequence, None)
        self._checking.pop(sequence, None)
        if sequence.answer.constraint is not None:
            sequence.answer.constraint.close()
            sequence.answer.constraint = None

    def close(self) -> None:
        if self._constraints is not None:
            self._constraints.close()


def failure(sequence: Sequence, why: str, reason: str = "CONSTRAINT_FAILED") -> InvalidArgument:
    """The error of a request whose constraint cannot be kept to."""
    constraint = sequence.answer.constraint
    field = constraint.field if constraint is not None else ""
    return InvalidArgument(f"the constraint: {why}", field=field, reason=reason)


def _is_stopped(sequence: Sequence) -> bool:
    """True if the last token that was generated elsewhere has ended the answer."""
    if not sequence.generated:
        return False
    last = int(sequence.tokens[sequence.n_tokens - 1])
    return finish_reason(sequence, last) == generation_pb2.FINISH_REASON_STOP


def _verdict(sequence: Sequence, check: Future[str]) -> Outcome:
    """The result of a check."""
    try:
        return Outcome(sequence, mismatch=check.result())
    except CheckError as error:
        return Outcome(sequence, failure(sequence, str(error)))
    except CheckerError as error:
        return Outcome(sequence, Internal(str(error), reason="CONSTRAINT_UNCHECKED"))
