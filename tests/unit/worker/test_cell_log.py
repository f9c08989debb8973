"""What llama.cpp logs of its cells."""

from __future__ import annotations

from inferflux.worker.engine.cell_log import UNKNOWN, Occupancy, latest

LINE = b"find_slot: stream[0], n =   700, used =    12, head =   701, size =  1024, n_swa =     0\n"


def test_the_latest_line_of_the_whole_cache_counts() -> None:
    older = LINE.replace(b"700", b"701")
    windows = LINE.replace(b"n_swa =     0", b"n_swa =   512")
    assert latest([older, LINE, windows, b"another line"]) == Occupancy(width=700, used=12)
    assert latest([LINE]).holes == 688


def test_without_such_a_line_nothing_is_known() -> None:
    assert latest([]) == latest([b"find_slot: something else", b"n = 3, used = 2"]) == UNKNOWN
