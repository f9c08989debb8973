"""What a child said before it ended, as one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inferflux.common.process.child.captured import Captured, cause_in, one_line


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], ""),
        (
            ["noise", "llama.cpp aborted: a.cpp:3: GGML_ASSERT(x) failed", "more"],
            "llama.cpp aborted: a.cpp:3: ",
        ),
        (
            ["terminate called after throwing an instance of 'std::out_of_range'", "  what():  map::at"],
            "map::at",
        ),
        (
            ["Traceback (most recent call last):", '  File "x"', "ValueError: too large"],
            "ValueError: too large",
        ),
    ],
)
def test_the_cause_is_found(lines: list[str], cause: str) -> None:
    assert cause_in(lines).startswith(cause)


def test_one_line_is_printable_and_short() -> None:
    assert one_line("  a\nb\x1b[31m\tc  ") == "a b [31m c"
    assert len(one_line("x" * 10_000)) < 600


def test_what_a_child_prints_can_be_read_after_its_end() -> None:
    with Captured() as captured:
        program = "import sys; print('x' * 200_000, file=sys.stderr); sys.exit('the end')"
        subprocess.run([sys.executable, "-c", program], stderr=captured.fileno(), check=False)
        assert captured.last_lines()[-1] == "the end"
        assert len(captured.read()) > 200_000


def test_closing_twice_closes_no_other_file() -> None:
    captured = Captured()
    captured.close()
    with Captured() as other:  # has the same number now
        captured.close()
        assert other.read() == b""
