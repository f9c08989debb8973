"""How many KV cells fit into memory (pure)."""

from __future__ import annotations

from dataclasses import dataclass

# What a cell takes beside keys and values: llama.cpp's own account of it, and a number for each row of a
# physical batch in the attention mask, once in float and once in half precision.
_CELL_ACCOUNT_BYTES = 128
_MASK_BYTES = 6
_KV_BYTES = 2
# Cells beyond the least take at most this part of the free memory: other processes need some.
_PART = 2


class DoesNotFitError(Exception):
    """The KV cache needs more memory than is free; says both."""


@dataclass(frozen=True, slots=True)
class CellShape:
    """What decides how large a cell is.

    Attributes:
        layers: of the model.
        key_values: numbers a layer keeps for one token, keys and values together.
        batch_rows: of a physical batch.
    """

    layers: int
    key_values: int
    batch_rows: int

    @property
    def bytes(self) -> int:
        """Of one cell: no less than it takes with keys and values in half precision."""
        kept = self.layers * self.key_values * _KV_BYTES
        return kept + self.batch_rows * _MASK_BYTES + _CELL_ACCOUNT_BYTES


def fit_cells(wanted: int, least: int, shape: CellShape, free_bytes: int) -> int:
    """How many of the `wanted` cells to make: fewer where memory is short, never fewer than `least`.

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
