"""What a worker may store, every gateway may read."""

from __future__ import annotations

from inferflux.common.bus.objects import MAX_OBJECT_BYTES
from inferflux.worker.files.gguf_header import MAX_HEADER_BYTES


def test_the_longest_tokenizer_file_fits_into_the_object_store() -> None:
    assert MAX_HEADER_BYTES <= MAX_OBJECT_BYTES
