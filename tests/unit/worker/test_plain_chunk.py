"""A chunk that is filled again says the same as a new one."""

from __future__ import annotations

import numpy as np
from harness.sequences import new_sequence

from inferflux.v1 import tokens_pb2
from inferflux.worker.engine.step.chunks import PlainChunk


def test_each_chunk_says_what_a_message_of_its_own_would_say() -> None:
    sequence = new_sequence(0, np.zeros(4, np.int32), prompt_tokens=1)
    plain = PlainChunk()
    for offset, token, text, unix_us in [(0, 7, "some", 5), (0, 0, "", 0), (12, 3, " ü", 1 << 50)]:
        whole = tokens_pb2.TokenChunk(
            request_id=sequence.origin.request_id,
            epoch=sequence.epoch,
            offset=offset,
            token_ids=[token],
            text=text,
            sampled_unix_us=unix_us,
        )
        assert (
            sequence.chunk_head + plain.serialized(offset, token, text, unix_us) == whole.SerializeToString()
        )
