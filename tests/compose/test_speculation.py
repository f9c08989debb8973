"""The draft model of docker-compose.yml: it drafts, and answers stay as they are."""

from __future__ import annotations

import pytest
from harness.client import Client, countdown

from compose.engine import Compose
from compose.load import Answers
from compose.notes import Notes


@pytest.mark.timeout(400)
async def test_a_draft_model_drafts_and_changes_no_answer(
    stack: Compose, client: Client, expected: Answers, notes: Notes
) -> None:
    drafting = stack.with_environment(
        INFERFLUX_WORKER_SPECULATION="draft", INFERFLUX_DRAFT_MODEL_FILE="inferflux-demo-draft.gguf"
    )
    await drafting.up()
    drafted = accepted = 0
    # One by one: a draft of a sequence alone is computed with the same bits as without.
    for start, end in expected:
        answer = await client.ask(countdown(start, end))
        assert answer.token_ids == expected[start, end]
        assert answer.terminal is not None
        drafted += answer.terminal.timings.draft_n
        accepted += answer.terminal.timings.draft_n_accepted
    assert 0 < accepted <= drafted
    notes.add(f"draft model: {accepted} of {drafted} drafted tokens were accepted")
    # As it was: the faults are done to what users run.
    await stack.up()
