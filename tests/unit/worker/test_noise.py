"""The noise of draws: of the right distribution, bounded, and a function of (seed, index, token id) alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.engine.sampling import noise

EULER_GAMMA = 0.5772156649


def noise_of(
    seed: int, indices: list[int], ids: list[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Of shape (indices, ids)."""
    states = noise.draw_states([noise.seed_state(seed)] * len(indices), indices)
    return noise.gumbel(states[:, None], np.array(ids))


@pytest.mark.parametrize(("n_indices", "n_ids"), [(1, 100_000), (100_000, 1), (300, 300)])
def test_it_is_gumbel_noise_over_ids_and_over_indices(n_indices: int, n_ids: int) -> None:
    found = np.sort(noise_of(7, list(range(n_indices)), list(range(n_ids))).ravel())
    assert found.mean() == pytest.approx(EULER_GAMMA, abs=0.02)
    assert found.var() == pytest.approx(np.pi**2 / 6, abs=0.05)
    # Kolmogorov-Smirnov: exceeded by chance once in a thousand seeds.
    expected = np.exp(-np.exp(-found))
    steps = np.arange(found.size) / found.size
    assert np.abs(expected - steps).max() < 1.95 / np.sqrt(found.size)


def test_neighbouring_seeds_indices_and_ids_share_nothing() -> None:
    values = np.stack([noise_of(seed, list(range(40)), list(range(40))) for seed in (7, 8, 2**63, 2**64 - 1)])
    assert np.unique(values).size == values.size


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.lists(st.integers(0, 200_000), min_size=1))
def test_it_does_not_depend_on_what_else_is_asked_for(seed: int, index: int, ids: list[int]) -> None:
    together = noise_of(seed, [index, index + 1], ids)
    for i, token in enumerate(ids):
        assert noise_of(seed, [index], [token])[0, 0] == together[0, i]


def test_no_two_numbers_differ_by_more_than_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for bits in (0, 2**64 - 1):
        monkeypatch.setattr(noise, "_splitmix", lambda states, bits=bits: np.full_like(states, bits))
        extreme = float(noise.gumbel(np.zeros(1, np.uint64), np.zeros(1, np.int64))[0])
        assert np.isfinite(extreme)
        if bits == 0:
            lowest = extreme
    assert noise.RANGE - 0.2 < extreme - lowest < noise.RANGE
