"""Memory that a model needs, estimated before it is loaded (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from inferflux.common.contract.requests.embedding_limits import MAX_JOB_TOKENS

from .fit import (
    CELLS_PER_SLOT,
    FEWEST_CELLS,
    MOST_PREFILL_CELLS,
    PHYSICAL_BATCH,
    PREFILL_PART,
    CellShape,
    whole_cells,
)
from .kv_types import USUAL, KvTypes
from .model_facts import ModelFacts

# Rows whose logits are kept.
_LOGIT_ROWS = 64
_NUMBER_BYTES = 4
# Python, numpy, llama.cpp and its buffers that do not depend on the model: measured with the demo model.
PROCESS_BYTES = 120 << 20

# Jobs that an embedder takes at once, unless something else is asked for: a slot costs it nothing.
EMBEDDING_SLOTS = 64
EMBEDDED_AT_ONCE = 64
"""Most texts of one step of an embedder."""
EMBEDDING_TOKENS = 2048
"""Longest text of an embedder unless another context length is asked for, and the least of its batch."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Size that is asked of a model's KV cache.

    Attributes:
        context_length: most tokens of one request; 0: the model's.
        kv_cells, kv_bytes: size of the cache; both 0: by slots and context length.
        prefill_cells: of the prefill context; None: a part of the cache's.
    """

    context_length: int
    slots: int
    kv_cells: int = 0
    kv_bytes: int = 0
    prefill_cells: int | None = None
    types: KvTypes = USUAL


@dataclass(frozen=True, slots=True)
class Beside:
    """Parts that a model has beside its weights and its KV cache.

    Attributes:
        projector_bytes: of the file that encodes images for it.
        kept_bytes: of encoded images, and of states that wait to be written to disk.
        draft_bytes: of the file of its draft model. draft: what that says; None: there is none.
        is_deterministic: whether it has a context of deterministic requests from its start.
    """

    projector_bytes: int = 0
    kept_bytes: int = 0
    draft_bytes: int = 0
    draft: ModelFacts | None = None
    is_deterministic: bool = False


NOTHING = Beside()


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory that a loaded model takes, in bytes.

    Attributes:
        cells: of the KV cache.
        kv: keys and values, of the prefill context as well.
        compute: what a step computes with, and the process itself.
    """

    weights: int
    cells: int
    kv: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute


def wanted_cells(trained_length: int, facts: ModelFacts, asked: Asked) -> int:
    """Cells that a KV cache is to have, where there is room for all of them."""
    cell = facts.kv_bytes_per_token(asked.types)
    if asked.kv_bytes and cell:
        return asked.kv_bytes // cell
    return asked.kv_cells or max(asked.context_length or trained_length, asked.slots * CELLS_PER_SLOT)


def step_bytes(facts: ModelFacts, cells: int) -> int:
    """Bytes that a step of a physical batch computes with, logits among them."""
    widest = max(facts.feed_forward, 4 * facts.embedding)
    step = PHYSICAL_BATCH * (2 * widest + cells) * _NUMBER_BYTES
    return step + _LOGIT_ROWS * facts.vocabulary_size * _NUMBER_BYTES


def needs_of(
    size_bytes: int,
    trained_length: int,
    facts: ModelFacts,
    asked: Asked,
    *,
    room: int,
    beside: Beside = NOTHING,
    is_elsewhere: bool = False,
) -> Needs:
    """Return what a model of `size_bytes` takes with the KV cache that it will have.

    A cache whose size is not set takes at most half of what the weights leave of `room`, and no less than
    one request needs.

    Args:
        trained_length: context length that the file states.
        room: bytes that models may take.
        is_elsewhere: whether the layers are on other machines: the embeddings alone are here, and a draft
            model.
    """
    kept = PROCESS_BYTES + beside.kept_bytes
    files = beside.projector_bytes + beside.draft_bytes
    drafted = CellShape(beside.draft.kv_bytes_per_token(USUAL), PHYSICAL_BATCH).bytes if beside.draft else 0
    if is_elsewhere:
        cells = whole_cells(wanted_cells(trained_length, facts, asked))
        compute = kept + step_bytes(facts, cells) + _draft_step_bytes(beside, cells)
        return Needs(facts.parts.input + files, cells, kv=cells * drafted, compute=compute)
    weights = size_bytes + files
    cell = facts.kv_bytes_per_token(asked.types)
    length = asked.context_length or trained_length
    kept_cell = CellShape(cell, PHYSICAL_BATCH).bytes
    wanted = wanted_cells(trained_length, facts, asked)
    if not (asked.kv_bytes or asked.kv_cells) and cell:
        least = asked.context_length or min(wanted, FEWEST_CELLS)
        of_cell = kept_cell * (2 if beside.is_deterministic else 1) + drafted
        wanted = max(min(wanted, max(room - weights - beside.kept_bytes, 0) // 2 // of_cell), least)
    cells = whole_cells(wanted)
    prefill = asked.prefill_cells
    if prefill is None:
        prefill = min(length, cells // PREFILL_PART, MOST_PREFILL_CELLS)
    apart = whole_cells(min(length, cells) + 1) if beside.is_deterministic else 0
    compute = kept + step_bytes(facts, cells) + _draft_step_bytes(beside, cells)
    return Needs(
        weights=weights,
        cells=cells,
        kv=(cells + prefill + apart) * kept_cell + cells * drafted,
        compute=compute + (step_bytes(facts, apart) if apart else 0),
    )


def _draft_step_bytes(beside: Beside, cells: int) -> int:
    """Bytes that a step of the draft model computes with; 0 where there is none."""
    return step_bytes(beside.draft, cells) if beside.draft is not None else 0


def embedder_needs_of(size_bytes: int, trained_length: int, facts: ModelFacts, asked: Asked) -> Needs:
    """Return what a model takes that embeds or ranks. Its cells are the tokens of the jobs that it takes at
    once.

    Its batch holds the longest text whole. A model that could generate keeps keys and values of it as well,
    and logits of each of its tokens.
    """
    length = min(asked.context_length or EMBEDDING_TOKENS, trained_length)
    batch = max(length, EMBEDDING_TOKENS)
    widest = max(facts.feed_forward, 4 * facts.embedding)
    step = batch * (2 * widest + 2 * batch) * _NUMBER_BYTES
    logits = batch * facts.vocabulary_size * _NUMBER_BYTES if facts.has_memory else 0
    return Needs(
        weights=size_bytes,
        cells=asked.slots * max(length, MAX_JOB_TOKENS),
        kv=batch * facts.kv_bytes_per_token(asked.types) if facts.has_memory else 0,
        compute=PROCESS_BYTES + step + logits,
    )
