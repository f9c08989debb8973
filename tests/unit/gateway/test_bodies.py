"""Where bodies are parsed: large ones off the loop's thread."""

from __future__ import annotations

import threading

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.process.tasks import LARGE_BYTES, off_loop_if_large
from inferflux.gateway.http.openai.text_bodies import TokenizeBody
from inferflux.gateway.http.paths.reading import parse


@pytest.mark.parametrize(("n_bytes", "is_on_loop"), [(LARGE_BYTES, True), (LARGE_BYTES + 1, False)])
async def test_only_a_large_body_leaves_the_thread_of_the_loop(n_bytes: int, is_on_loop: bool) -> None:
    body = b"x" * n_bytes
    thread = await off_loop_if_large(len(body), threading.get_ident)
    assert (thread == threading.get_ident()) is is_on_loop
    with pytest.raises(InvalidArgument):
        await off_loop_if_large(len(body), lambda: parse(TokenizeBody, body))
