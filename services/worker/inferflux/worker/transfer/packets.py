"""Wishes and packets between workers: what they may say, and in which order packets come (pure)."""

from __future__ import annotations

import re

from inferflux.common.contract import checks
from inferflux.common.contract.address import is_address
from inferflux.common.contract.epochs import MAX_EPOCH
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.admin_limits import MAX_SCOPE_BYTES
from inferflux.v1 import scheduler_pb2, worker_pb2

# A prefix of a million tokens.
MAX_WISH_BYTES = 4 << 20
MAX_PACKET_BYTES = 16 << 10
# Of a piece: no state of one sequence is larger.
MAX_PIECE_BYTES = 1 << 36
MOST_LIMIT_MS = 600_000
# Of a transfer, which may be cut and go on: few are sent, and a flood would keep the taker busy.
_MOST_WITHOUT_PIECE = 16
_TOKEN_BYTES = 4
_MOST_ERROR_BYTES = 2000
_MOST_TEXT_BYTES = 256
# A name in the folder of pieces: no path, and nothing hidden.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,127}")


class Failed(Exception):
    """A transfer that cannot go on.

    Args:
        reason: one of few words, for metrics: `unreachable`, `lost`, `timeout`, `refused` (by the source),
            `order`, `corrupt`, `engine`, `no_room`, `busy`, `superseded`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def check_source(source: scheduler_pb2.KvSource, field: str) -> None:
    """Raises InvalidArgument where a worker cannot be asked by this."""
    checks.check_token(source.worker_id, f"{field}.worker_id")
    checks.check_token(source.incarnation, f"{field}.incarnation")
    checks.check_text(source.exchange, _MOST_TEXT_BYTES, f"{field}.exchange")
    checks.check_text(source.ticket, _MOST_TEXT_BYTES, f"{field}.ticket")
    checks.check_text(source.address, _MOST_TEXT_BYTES, f"{field}.address")
    if source.address and not is_address(source.address):
        raise InvalidArgument(f"{field}.address is not host:port", field=f"{field}.address")


def check_origin(origin: worker_pb2.StateOrigin, field: str) -> None:
    """Raises InvalidArgument where a state cannot be asked for by this."""
    check_source(origin.source, f"{field}.source")
    checks.check_range(origin.epoch, 0, MAX_EPOCH, f"{field}.epoch")


def check_wish(wish: worker_pb2.KvWish) -> None:
    """Raises InvalidArgument for a wish that no worker has."""
    checks.check_token(wish.tenant, "tenant")
    checks.check_token(wish.request_id, "request_id")
    checks.check_range(wish.epoch, 0, MAX_EPOCH, "epoch")
    check_prefix(wish.token_ids, wish.cache_scope, "")
    checks.check_range(wish.known_tokens, 0, checks.MAX_TOKENS, "known_tokens")
    checks.check_range(wish.limit_ms, 0, MOST_LIMIT_MS, "limit_ms")
    if not (wish.epoch or wish.token_ids):
        raise InvalidArgument("a prefix is wanted, and there are no tokens", field="token_ids")


def check_prefix(token_ids: bytes, cache_scope: str, within: str) -> None:
    """Raises InvalidArgument where these are no tokens or no scope of a prefix.

    Args:
        within: what the fields are of, with a dot at its end; empty: of the message itself.
    """
    checks.check_text(cache_scope, MAX_SCOPE_BYTES, f"{within}cache_scope")
    if len(token_ids) % _TOKEN_BYTES:
        field = f"{within}token_ids"
        raise InvalidArgument(f"{field} are not whole numbers of four bytes", field=field)


def is_name(name: str) -> bool:
    """True if a file of a folder of pieces may be called so."""
    return _NAME.fullmatch(name) is not None


def last_packet(wish: worker_pb2.KvWish, why: str) -> worker_pb2.KvPacket:
    """The packet that ends a transfer without its state."""
    return worker_pb2.KvPacket(
        tenant=wish.tenant,
        request_id=wish.request_id,
        epoch=wish.epoch,
        is_last=True,
        error=why.encode()[:_MOST_ERROR_BYTES].decode(errors="ignore"),
    )


class PacketOrder:
    """Follows the packets of one transfer: each piece goes on where the one before it ended.

    Attributes:
        n_past: the first tokens whose pieces have come.
        is_over: the last packet has come.
    """

    def __init__(self, wish: worker_pb2.KvWish) -> None:
        self._identity = (wish.tenant, wish.request_id, wish.epoch)
        self.n_past = wish.known_tokens
        self.is_over = False
        self._n_without_piece = 0

    def check(self, packet: worker_pb2.KvPacket) -> None:
        """Raises Failed where this packet cannot be the next one."""
        identity = (packet.tenant, packet.request_id, packet.epoch)
        if identity != self._identity:
            names = ("tenant", "request_id", "epoch")
            differs = [n for n, a, b in zip(names, identity, self._identity, strict=True) if a != b]
            raise Failed("order", f"a packet of another {', '.join(differs)}")
        if self.is_over:
            raise Failed("order", "a packet after the last one")
        if not packet.n_bytes:
            if self._n_without_piece >= _MOST_WITHOUT_PIECE:
                raise Failed("order", f"more than {_MOST_WITHOUT_PIECE} packets without a piece")
            return
        if not packet.first < packet.n_past <= checks.MAX_TOKENS:
            raise Failed("order", f"a piece of the positions [{packet.first}, {packet.n_past})")
        if packet.n_bytes > MAX_PIECE_BYTES:
            raise Failed("order", f"a piece of {packet.n_bytes} bytes")
        if packet.n_past <= self.n_past:
            raise Failed("order", f"a piece up to {packet.n_past} came again: {self.n_past} are here")
        # A state that cannot be divided comes whole.
        if packet.first not in (0, self.n_past):
            raise Failed("order", f"a piece from {packet.first} on, not from {self.n_past}")

    def follow(self, packet: worker_pb2.KvPacket) -> None:
        """Take note of the next packet; raises as `check`."""
        self.check(packet)
        if packet.n_bytes:
            self.n_past = packet.n_past
        else:
            self._n_without_piece += 1
        self.is_over = packet.is_last
