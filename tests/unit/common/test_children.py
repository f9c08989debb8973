"""How the end of a child process is described."""

from __future__ import annotations

import pytest

from inferflux.common.process.child.children import describe_end


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exited with status 0"),
        (1, "exited with status 1"),
        (-9, "was ended by SIGKILL"),
        (-40, "was ended by signal 40"),
    ],
)
def test_an_end_is_described_by_status_or_signal(code: int, said: str) -> None:
    assert describe_end(code) == said
