"""Lists in pages. No I/O.

A token names the last item of a page, by its place in the order of the list. So an item that stays is told
once, whatever is added and removed between two pages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .checks import check_range

_Item = TypeVar("_Item")

MAX_PAGE = 10_000


def check_page_size(size: int) -> None:
    """Raises:
    InvalidArgument: no page can have this size; 0 is all that is left.
    """
    check_range(size, 0, MAX_PAGE, "page_size")


def page_after(
    items: Sequence[_Item], place: Callable[[_Item], Any], after: object | None, size: int
) -> tuple[Sequence[_Item], bool]:
    """A page of items, and whether others follow.

    Args:
        items: in the order of their places.
        after: the place of the last item of the page before; None: this is the first page.
        size: of the page; 0: all that is left.
    """
    start = 0 if after is None else bisect_right([place(item) for item in items], after)
    page = items[start : start + size] if size else items[start:]
    return page, bool(page) and start + len(page) < len(items)
