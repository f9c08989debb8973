"""Number of KV cells that fit into memory (pure)."""

from __future__ import annotations

from dataclasses import dataclass

# llama.cpp makes caches of whole pieces of this many cells.
CELL_UNIT = 256
# Where no size is asked for: cells of each slot, and the fewest that will do.
CELLS_PER_SLOT = 1024
FEWEST_CELLS = 256
# The prefill context has this part of the KV cache's cells, and at most this many, unless something else
# is asked for: it takes memory of its own.
PREFILL_PART = 4
MOST_PREFILL_CELLS = 8192
# Rows that a context computes at a time.
PHYSICAL_BATCH = 512
# More cells than any message can say.
_MOST_CELLS = (2**31 - 1) // CELL_UNIT * CELL_UNIT
# What a cell takes beside keys and values: llama.cpp's own account of it, and a number for each row of a
# physical batch in the attention mask, once in float and once in half precision.
_CELL_ACCOUNT_BYTES = 128
_MASK_BYTES = 6
# Cells beyond the least take at most this part of the free memory: other processes need some.
_PART = 2


class DoesNotFitError(Exception):
    """The KV cache needs more memory than there is for it; says both."""


@dataclass(frozen=True, slots=True)
class CellShape:
    """Sizes that decide how large a cell is.

    Attributes:
        kept_bytes: of keys and values, of all layers together.
        batch_rows: of a physical batch.
    """

    kept_bytes: int
    batch_rows: int

    @property
    def bytes(self) -> int:
        """Bytes of one cell: no less than it takes."""
        return self.kept_bytes + self.batch_rows * _MASK_BYTES + _CELL_ACCOUNT_BYTES


def whole_cells(cells: int) -> int:
    """`cells` as llama.cpp rounds them up. It cuts the batch to what was asked for before, which may be
    fewer than there are sequences."""
    return -(-cells // CELL_UNIT) * CELL_UNIT


def fit_cells(wanted: int, least: int, shape: CellShape, free_bytes: int) -> int:
    """Number of the `wanted` cells to make: fewer where memory is short, never fewer than `least`.

    Args:
        free_bytes: of memory, the weights being loaded.

    Raises:
        DoesNotFitError: `least` need more than is free.
    """
    cells = max(min(wanted, free_bytes // _PART // shape.bytes), least)
    if cells * shape.bytes > free_bytes:
        needed_gib, free_gib = cells * shape.bytes / 2**30, free_bytes / 2**30
        message = f"{cells} KV cells take {needed_gib:.1f} GiB of memory, {free_gib:.1f} GiB are free"
        raise DoesNotFitError(message)
    return cells


def cells_in(n_bytes: int, kept_bytes: int, least: int) -> int:
    """Number of cells that have their keys and values in `n_bytes`.

    Args:
        kept_bytes: of one cell's keys and values; 0 where a sequence has a state instead of cells.
        least: cells that one sequence needs.

    Raises:
        DoesNotFitError: they are fewer than `least`.
    """
    if not kept_bytes:
        raise DoesNotFitError("the model keeps no cell for each token: set INFERFLUX_WORKER_KV_CELLS")
    cells = n_bytes // kept_bytes // CELL_UNIT * CELL_UNIT
    needed = whole_cells(least)
    if cells < needed:
        takes = f"{needed * kept_bytes} bytes: {needed} KV cells of {kept_bytes} each"
        raise DoesNotFitError(f"one sequence of {least} tokens takes {takes}")
    return min(cells, _MOST_CELLS)
