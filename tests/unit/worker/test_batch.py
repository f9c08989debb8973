"""A step's parts follow each other in the batch, each with the logits it wants."""

from __future__ import annotations

import numpy as np
from harness.sequences import new_sequence

from inferflux.worker.engine.llama.batch import Batch
from inferflux.worker.engine.plan.planner import ScheduledTokens


def test_a_part_has_as_many_rows_of_logits_as_it_wants() -> None:
    batch = Batch(16)
    batch.logits[:] = 1  # of the step before
    tokens = np.arange(10, dtype=np.int32)
    sequences = [new_sequence(seq_id, tokens, prompt_tokens=8) for seq_id in (3, 5, 7)]
    sequences[0].position, sequences[2].position = 2, 7
    parts = [
        ScheduledTokens(sequences[0], 4, n_logits=3),
        ScheduledTokens(sequences[1], 2),
        ScheduledTokens(sequences[2], 1, n_logits=1),
    ]
    assert batch.fill(parts) == (7, 4)
    assert batch.tokens[:7].tolist() == [2, 3, 4, 5, 0, 1, 7]
    assert batch.positions[:7].tolist() == [2, 3, 4, 5, 0, 1, 7]
    assert batch.logits[:7].tolist() == [0, 1, 1, 1, 0, 0, 1]
