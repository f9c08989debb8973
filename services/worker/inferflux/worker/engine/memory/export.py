"""An export: what of a sequence has left in pieces, and how many tokens are due next (pure)."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from inferflux.v1 import engine_pb2
from inferflux.worker.engine.kv.envelope import TokenArray
from inferflux.worker.engine.plan.sequence import Sequence

# Tokens of a piece, unless fewer are left or there is time for fewer.
PIECE = 256
# An export has caught up once no more tokens are left.
NEARLY_ALL = 64
# Of an export, unless it is one piece.
_MOST_UNREAD_BYTES = 64 << 20


def n_due(waiting: int, *, is_complete: bool, is_near: bool) -> int:
    """Number of the `waiting` tokens, which are computed and have not left, that leave now (pure).

    Args:
        is_complete: whether the prompt is computed: others come one by one.
        is_near: whether it was told that little is left.
    """
    if waiting >= PIECE:
        return PIECE
    return max(waiting, 0) if is_complete and (waiting >= NEARLY_ALL or not is_near) else 0


@dataclass(slots=True, eq=False)
class Export:
    """An export that is under way, or whose pieces are not read yet.

    Attributes:
        key: of its request; empty: it is of a prefix, `tokens`, of shape (n,).
        exported: its first tokens that have left, or are not wanted.
        began_s, read_s, looked_s: when it began, a piece was last read, and that was last looked for.
        is_near: whether it was told that little is left.
        is_due: whether more would leave now if there were time.
        is_ended: whether nothing more leaves.
        told: what is to be reported, each with the write that it waits for.
        unread: bytes of each file that is written and not read.
        token_bytes: of state, as the last piece had it.
    """

    id: int
    key: str
    scope: str
    tokens: TokenArray
    exported: int
    began_s: float
    read_s: float
    sequence: Sequence | None = None
    looked_s: float = 0.0
    is_near: bool = False
    is_due: bool = True
    is_ended: bool = False
    told: deque[tuple[engine_pb2.EnginePiece, Future[None] | None]] = field(default_factory=deque)
    unread: dict[str, int] = field(default_factory=dict)
    token_bytes: float = 0.0

    def has_room(self, n_bytes: float) -> bool:
        """True if so much more may lie unread."""
        return not self.unread or sum(self.unread.values()) + n_bytes <= _MOST_UNREAD_BYTES

    def tell(self, piece: engine_pb2.EnginePiece, write: Future[None] | None = None) -> None:
        """Report a piece once it is written, after those before."""
        piece.id = self.id
        self.is_near |= piece.is_caught_up
        self.is_ended |= piece.is_last
        self.told.append((piece, write))
