"""Log-probabilities of a prompt's tokens."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from inferflux.worker.engine.sampling.prompt_scores import PromptScores

TOKENS = np.array([4, 0, 2, 1, 3], np.int32)


class Pieces:
    def piece(self, token: int) -> bytes:
        return b"" if token == 4 else b"\xe2" if token == 3 else bytes([65 + token])

    def piece_text(self, token: int) -> str:
        return self.piece(token).decode("utf-8", "replace")

    def text(self, token: int) -> str:
        return f"<{token}>"


def logits_of(n: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(n, 5)).astype(np.float32)


@pytest.mark.parametrize("cuts", [[5], [1, 2, 3, 4, 5], [2, 5]])
def test_each_token_has_its_logarithm_however_the_prompt_is_cut(cuts: list[int]) -> None:
    sequence = SimpleNamespace(tokens=TOKENS, prompt_tokens=5)
    logits, scores, first = logits_of(5), PromptScores(2), 0
    for end in cuts:
        scores.add(sequence, first, logits[first:end], Pieces())
        first = end
    assert scores.is_complete(5)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert [entry.chosen.token_id for entry in scores.entries] == TOKENS.tolist()
    found = [entry.chosen.logprob for entry in scores.entries[1:]]
    assert found == pytest.approx([expected[i, TOKENS[i + 1]] for i in range(4)], abs=1e-5)
    for i, entry in enumerate(scores.entries[1:]):
        assert [one.token_id for one in entry.top] == np.argsort(-logits[i])[:2].tolist()


def test_what_is_computed_again_is_not_told_twice() -> None:
    sequence = SimpleNamespace(tokens=TOKENS, prompt_tokens=5)
    logits, scores = logits_of(5), PromptScores(0)
    scores.add(sequence, 0, logits[:3], Pieces())
    scores.add(sequence, 0, logits[:2], Pieces())
    scores.add(sequence, 2, logits[2:], Pieces())
    assert [entry.chosen.token_id for entry in scores.entries] == TOKENS.tolist()


def test_control_tokens_are_spelled_and_parts_of_characters_have_their_bytes() -> None:
    scores = PromptScores(0)
    scores.add(SimpleNamespace(tokens=TOKENS, prompt_tokens=5), 0, logits_of(5), Pieces())
    assert scores.entries[0].chosen.text == "<4>"
    assert scores.entries[-1].chosen.piece == b"\xe2"
    assert not scores.entries[1].chosen.piece
