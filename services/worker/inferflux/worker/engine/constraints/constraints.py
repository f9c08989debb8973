"""Constraints of answers: compiled beside the engine's thread, one state for each sequence.

A sequence does not sample before its constraint is compiled. The state depends on the generated tokens
alone, so it is rebuilt from them wherever the sequence goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from typing import Protocol

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from inferflux.common.llama.vocab import Vocab
from inferflux.common.text.constraints.checking import ConstraintError, is_checked
from inferflux.common.text.constraints.compiling import Compiled, Compiler, why_failed
from inferflux.v1 import generation_pb2

from .answer_checks import AnswerChecks

# A constraint that is not compiled by then ends its request. The gateway has tried it within less.
COMPILE_LIMIT_S = 10.0
_MOST_CACHED = 64

Mask = NDArray[np.int32]


class Masking(Protocol):
    """A matcher that computes which tokens may come next."""

    def fill(self, mask: Mask) -> bool:
        """Set the bits of the tokens that may come next; False if there are none."""

    def look_ahead(self, token: int) -> None:
        """Have `fill` answer for what follows `token` as well, until `look_back`."""

    def look_back(self) -> None:
        """Forget the tokens that were looked beyond."""


class Constraint(Masking, Protocol):
    """The part of a constraint that a sequence and its sampling need.

    `fill` sets `error` if no token may come next, unless it looks ahead.

    Attributes:
        field: of the request that asked for it.
    """

    field: str

    @property
    def is_ready(self) -> bool:
        """True if tokens can be sampled under it."""

    @property
    def error(self) -> str:
        """Reason why it cannot be kept to; "" while it can."""

    @property
    def is_over(self) -> bool:
        """True if the answer is complete and nothing may follow."""

    def forced(self) -> list[int]:
        """The next tokens, as far as it leaves no choice of them."""

    def accept(self, token: int) -> None:
        """`token` was generated."""

    def check(self, answer: str) -> Future[str] | None:
        """Check a complete answer: see `AnswerChecks.begin`. None: it is what was asked for."""

    def close(self) -> None:
        """Release it: it is not needed any more."""


class CompiledConstraint:
    """The constraint of one sequence.

    Args:
        compiling: gives what is compiled, and a matcher that has seen what was generated before.
        checks: of complete answers.
    """

    def __init__(self, compiling: Future[tuple[Compiled, LLMatcher]], checks: AnswerChecks) -> None:
        self._compiling = compiling
        self._checks = checks
        self._checking: Future[str] | None = None
        # When it was first seen to be compiled, by the monotonic clock: others may have been before it.
        self._since_s: float | None = None
        self._compiled: Compiled | None = None
        self._matcher: LLMatcher | None = None
        # Tokens that were looked beyond; whether nothing can follow them.
        self._n_ahead = 0
        self._is_beyond_end = False
        self.error = ""
        self.field = ""

    @property
    def is_ready(self) -> bool:
        return self._matcher is not None

    def settle(self, now_s: float) -> bool:
        """Return whether it is compiled by now, or has failed."""
        if self._compiling.done():
            try:
                self._compiled, self._matcher = self._compiling.result()
            except ConstraintError as error:
                self.error = str(error)
            return True
        if self._since_s is None and self._compiling.running():
            self._since_s = now_s
        if self._since_s is None or now_s - self._since_s < COMPILE_LIMIT_S:
            return False
        self.error = f"compiling it took longer than {COMPILE_LIMIT_S:g} s"
        return True

    @property
    def is_over(self) -> bool:
        matcher = self._matcher
        return matcher is not None and matcher.is_stopped() and not matcher.is_error()

    def fill(self, mask: Mask) -> bool:
        matcher = self._matcher
        if matcher is None:
            raise RuntimeError("the constraint is not compiled yet")
        if self._is_beyond_end:
            return False
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        error = ""
        if matcher.is_error():
            error = why_failed(matcher)
        elif not mask.any():
            error = "nothing may follow, and the answer is not complete"
        if not self._n_ahead:
            self.error = error
        return not error

    def forced(self) -> list[int]:
        matcher = self._matcher
        return [] if matcher is None or matcher.is_error() else matcher.compute_ff_tokens()

    def look_ahead(self, token: int) -> None:
        matcher = self._matcher
        if matcher is None or self._is_beyond_end:
            return
        n = matcher.try_consume_tokens([token])
        self._n_ahead += n
        self._is_beyond_end = not n or matcher.is_stopped()

    def look_back(self) -> None:
        if self._matcher is not None and self._n_ahead:
            self._matcher.rollback(self._n_ahead)
        self._n_ahead = 0
        self._is_beyond_end = False

    def accept(self, token: int) -> None:
        if self._matcher is not None and not self._matcher.consume_token(token):
            self.error = why_failed(self._matcher)

    def check(self, answer: str) -> Future[str] | None:
        if self._compiled is not None and self._compiled.is_checked:
            self._checking = self._checks.begin(self._compiled.constraint, answer)
        return self._checking

    def close(self) -> None:
        self._compiling.cancel()
        if self._checking is not None:
            self._checking.cancel()
        self._matcher = self._compiled = None


class Constraints:
    """Compiles for one model, in a thread of its own, keeps what it has compiled, and has answers checked.

    Args:
        why_not: what another one has found of this vocabulary. Reading it takes about a second for 128,000
            tokens; with this, it is put off until the first constraint.

    Attributes:
        why_not: why this model's answers cannot be constrained; "" if they can.
    """

    def __init__(self, vocab: Vocab, why_not: str | None = None) -> None:
        self._compiler = Compiler(vocab)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="constraints")
        self._checks = AnswerChecks()
        # By digest; used by the pool's one thread alone.
        self._cache: OrderedDict[bytes, Compiled] = OrderedDict()
        self.why_not = self._try() if why_not is None else why_not

    def _try(self) -> str:
        """Reason why answers cannot be constrained; "" if they can."""
        try:
            self._compiler.read_vocabulary()
        except ConstraintError as error:
            return str(error)
        return ""

    def begin(
        self, constraint: generation_pb2.StructuredConstraint, generated: Sequence[int]
    ) -> CompiledConstraint:
        """Have it compiled for a sequence that has generated these tokens before, after those that wait."""
        if is_checked(constraint):
            self._checks.prepare()
        return CompiledConstraint(self._pool.submit(self._prepare, constraint, list(generated)), self._checks)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._checks.close()

    def _prepare(
        self, constraint: generation_pb2.StructuredConstraint, generated: list[int]
    ) -> tuple[Compiled, LLMatcher]:
        compiled = self._compiled(constraint)
        matcher = compiled.matcher.deep_copy()
        if generated and not matcher.consume_tokens(generated):
            raise ConstraintError(f"what was generated before does not match it: {why_failed(matcher)}")
        return compiled, matcher

    def _compiled(self, constraint: generation_pb2.StructuredConstraint) -> Compiled:
        digest = blake2b(constraint.SerializeToString(deterministic=True)).digest()
        found = self._cache.get(digest)
        if found is None:
            found = self._cache[digest] = self._compiler.compile(constraint)
            if len(self._cache) > _MOST_CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(digest)
        return found
