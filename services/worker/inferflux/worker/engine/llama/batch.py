"""A llama_batch that is filled by slices of numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferflux.common.llama.native import llama
from inferflux.worker.engine.plan.planner import ScheduledTokens


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of one sequence id, from a position on."""

    tokens: NDArray[np.int32]
    seq_id: int
    position: int


class Batch:
    """A llama_batch over numpy arrays, filled by slices instead of token by token."""

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.seq_ids = np.zeros(capacity, np.int32)
        self.logits = np.zeros(capacity, np.int8)
        self._one_each = np.ones(capacity, np.int32)
        addresses = self.seq_ids.ctypes.data + np.arange(capacity, dtype=np.uint64) * self.seq_ids.itemsize
        self._seq_id_pointers = addresses
        self._steps = np.arange(capacity, dtype=np.int32)
        self._struct = llama.llama_batch()
        self._struct.token = _pointer(self.tokens, ctypes.c_int32)
        self._struct.pos = _pointer(self.positions, ctypes.c_int32)
        self._struct.n_seq_id = _pointer(self._one_each, ctypes.c_int32)
        self._struct.seq_id = _pointer(self._seq_id_pointers, ctypes.POINTER(ctypes.c_int32))
        self._struct.logits = _pointer(self.logits, ctypes.c_int8)

    def fill(self, parts: Iterable[ScheduledTokens]) -> tuple[int, int]:
        """Write these parts of sequences one after the other.

        Returns:
            How many tokens they have, and how many rows of logits they want.
        """
        at = outputs = 0
        for part in parts:
            sequence = part.sequence
            at_end = at + part.n
            first = sequence.position
            tokens = sequence.tokens[first : first + part.n]
            position = sequence.images.position(first) if sequence.images else first
            self.put(at, tokens, seq_id=sequence.seq_id, position=position)
            if part.n_rows:
                self.logits[at_end - part.n_rows : at_end] = 1
            outputs += part.n_rows
            at = at_end
        return at, outputs

    def put(self, at: int, tokens: NDArray[np.int32], *, seq_id: int, position: int) -> None:
        """Write `tokens` of one sequence from index `at` on, no logits wanted."""
        n = tokens.shape[0]
        if n == 1:
            self.tokens[at] = tokens[0]
            self.positions[at] = position
            self.seq_ids[at] = seq_id
            self.logits[at] = 0
            return
        end = at + n
        self.tokens[at:end] = tokens
        self.positions[at:end] = self._steps[:n] + position
        self.seq_ids[at:end] = seq_id
        self.logits[at:end] = 0

    def embedded(self, embeddings: NDArray[np.float32], *, seq_id: int, positions: NDArray[np.int32]) -> Any:
        """A llama_batch of cells of one sequence whose embeddings are given, no logits wanted.

        Args:
            embeddings: of shape (cells, width of the model).
            positions: of shape (dimensions, cells). Both are to be kept until it is computed.
        """
        n = embeddings.shape[0]
        self.seq_ids[:n] = seq_id
        self.logits[:n] = 0
        batch = llama.llama_batch()
        batch.n_tokens = n
        batch.embd = _pointer(embeddings, ctypes.c_float)
        batch.pos, batch.n_seq_id = _pointer(positions, ctypes.c_int32), self._struct.n_seq_id
        batch.seq_id, batch.logits = self._struct.seq_id, self._struct.logits
        return batch

    def struct(self, n_tokens: int) -> Any:
        self._struct.n_tokens = n_tokens
        return self._struct


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
