"""Which rank has the experts of which layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferflux.worker.files.expert_ranks import ExpertDispatch, ExpertRank, ranks_of

EXPERTS = 8
LAYERS = st.sets(st.integers(0, 1023), min_size=1, max_size=60).map(sorted)


def test_ranks_are_devices_with_layers_or_equal_parts() -> None:
    assert ranks_of(["CUDA0=0-11", "10.0.0.2:50061=12-23", "CPU=24-24"]) == (
        ExpertRank("CUDA0", (0, 11)),
        ExpertRank("10.0.0.2:50061", (12, 23)),
        ExpertRank("CPU", (24, 24)),
    )
    assert ranks_of(["RPC0", "RPC1"]) == (ExpertRank("RPC0"), ExpertRank("RPC1"))
    assert ranks_of([]) == ()


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (["CUDA0=0"], "is not DEVICE=FIRST-LAST"),
        (["CUDA0=a-b"], "is not DEVICE=FIRST-LAST"),
        (["CUDA0=-1-3"], "is not DEVICE=FIRST-LAST"),
        (["=0-3"], "is not DEVICE=FIRST-LAST"),
        (["CUDA 0"], "is not DEVICE=FIRST-LAST"),
        (["CUDA0=3-0"], "last layer before its first"),
        (["CUDA0=0-3", "CUDA1"], "for every device, or for none"),
        (["CUDA0=0-3", "CUDA1=3-5"], "layer 3 to two devices"),
        (["CUDA1=3-5", "CUDA0=0-9"], "layer 3 to two devices"),
        (["CUDA0", "cuda0"], "twice"),
        ([f"CUDA0={i}-{i}" for i in range(33)], "at most 32"),
    ],
)
def test_ranks_that_cannot_be_are_refused(given_: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ranks_of(given_)


@pytest.mark.parametrize("range_", ["12-30", "27-28", "0-0"])
def test_layers_that_have_no_experts_are_refused(range_: str) -> None:
    with pytest.raises(ValueError, match=rf"has CPU={range_}, and the model's experts are in layers 1-26"):
        ExpertDispatch(ranks_of([f"CPU={range_}"]), range(1, 27), EXPERTS)


@given(LAYERS, st.integers(1, 8))
def test_equal_parts_own_every_expert_once_and_differ_by_one_layer(layers: list[int], n_ranks: int) -> None:
    dispatch = ExpertDispatch(ranks_of(f"RPC{i}" for i in range(n_ranks)), layers, EXPERTS)
    owned = [dispatch.layers_of(i) for i in range(len(dispatch.ranks))]
    assert [layer for part in owned for layer in part] == layers
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    assert len(owned) == min(n_ranks, len(layers))


@st.composite
def dispatches(draw: st.DrawFn) -> tuple[ExpertDispatch, list[int]]:
    layers = draw(LAYERS)
    cuts = sorted(draw(st.sets(st.sampled_from(layers), min_size=1)))
    ends = [cut - 1 for cut in cuts[1:]] + [layers[-1]]
    kept = draw(st.lists(st.booleans(), min_size=len(cuts), max_size=len(cuts)).filter(any))
    bounds = [(first, last) for first, last, is_kept in zip(cuts, ends, kept, strict=True) if is_kept][:32]
    shuffled = draw(st.permutations(bounds))
    given_ = ranks_of(f"RPC{i}={first}-{last}" for i, (first, last) in enumerate(shuffled))
    return ExpertDispatch(given_, layers, EXPERTS), layers


@given(dispatches(), st.integers(0, 1023), st.integers(-1, EXPERTS))
def test_an_expert_has_one_owner_and_that_owns_its_whole_layer(
    made: tuple[ExpertDispatch, list[int]], layer: int, expert: int
) -> None:
    dispatch, layers = made
    owners = [i for i in range(len(dispatch.ranks)) if dispatch.owns_expert(i, layer, expert)]
    owner = dispatch.owner_of(layer, expert)
    assert owners == ([] if owner is None else [owner])
    is_there = layer in layers and 0 <= expert < EXPERTS
    holders = [i for i in range(len(dispatch.ranks)) if layer in dispatch.layers_of(i)]
    assert owners == (holders if is_there else [])
    if owner is not None:
        assert all(dispatch.owns_expert(owner, layer, other) for other in range(EXPERTS))
