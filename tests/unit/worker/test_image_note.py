"""An engine that crashes has named the image that it computed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from inferflux.common.process.child.captured import Captured
from inferflux.worker.engine.media.image_note import ImageNote, noted_in
from inferflux.worker.processes import engine_host


@pytest.fixture
def file() -> Iterator[Captured]:
    with Captured() as captured:
        yield captured


def test_a_note_names_an_image_while_it_is_computed(file: Captured) -> None:
    note = ImageNote(file.fileno())
    assert noted_in(file.read()) == ""
    with note.encoding("one.1"):
        assert noted_in(file.read()) == "one.1"
    assert noted_in(file.read()) == ""
    with pytest.raises(ValueError, match="broken"), note.decoding("two.1"):
        raise ValueError("broken")
    assert noted_in(file.read()) == ""


def test_of_two_images_the_one_of_the_thread_that_aborts_is_to_blame(file: Captured) -> None:
    note = ImageNote(file.fileno())

    def encode(*, aborts: bool) -> None:
        with note.encoding("encoded"):
            begun.set()
            ends.wait()
            if aborts:
                note.on_abort()
                found.append(noted_in(file.read()))

    for aborts in (True, False):
        begun, ends, found = threading.Event(), threading.Event(), list[str]()
        encoder = threading.Thread(target=encode, kwargs={"aborts": aborts})
        encoder.start()
        begun.wait()
        with note.decoding("decoded"):
            assert noted_in(file.read()) == "", "either may be to blame"
            if aborts:
                ends.set()
                encoder.join()
                assert found == ["encoded"]
            else:
                note.on_abort()
                assert noted_in(file.read()) == "decoded"
        ends.set()
        encoder.join()


def test_a_step_beside_an_encoding_leaves_it_open_which_is_to_blame(file: Captured) -> None:
    note = ImageNote(file.fileno())
    with note.encoding("encoded"):
        with note.stepping():
            assert noted_in(file.read()) == ""
            with note.decoding("encoded"):
                assert noted_in(file.read()) == "encoded"
            assert noted_in(file.read()) == ""
        assert noted_in(file.read()) == "encoded"
    with note.stepping():
        assert noted_in(file.read()) == ""


def test_an_engine_without_a_worker_notes_nothing() -> None:
    with ImageNote().encoding("one"):
        pass


def test_only_native_code_that_ends_its_own_process_is_a_crash() -> None:
    assert engine_host._is_crash(-6, "llama.cpp aborted: clip.cpp:1: GGML_ASSERT(n > 0) failed")
    assert engine_host._is_crash(-11, "")
    assert not engine_host._is_crash(-9, "")
    assert not engine_host._is_crash(1, "MemoryError")
    gone = "llama.cpp aborted: llama.cpp/ggml/src/ggml-rpc/ggml-rpc.cpp:1: the server is gone"
    assert not engine_host._is_crash(-os.EX_SOFTWARE, gone)
    assert not engine_host._is_crash(-6, gone)
