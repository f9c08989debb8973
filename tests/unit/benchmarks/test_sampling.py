"""Both kinds of server are asked for the same sampling."""

from __future__ import annotations

import pytest

from benchmarks.load.grpc_target import generate_request
from benchmarks.load.sampling import GREEDY, Sampling
from benchmarks.load.sse_target import sampling_fields
from benchmarks.serve import parse


def test_greedy_is_temperature_zero_and_nothing_else() -> None:
    sampling = generate_request("m", [1], 5).params.sampling
    assert sampling.HasField("temperature")
    assert sampling.temperature == 0.0
    assert not sampling.HasField("top_k")
    assert sampling_fields(GREEDY) == {"temperature": 0}


def test_a_temperature_comes_with_the_same_filters_on_both_sides() -> None:
    asked = Sampling(0.8, 40, 0.95)
    ours = generate_request("m", [1], 5, sampling=asked).params.sampling
    theirs = sampling_fields(asked)
    assert (ours.top_k, theirs["top_k"]) == (40, 40)
    assert ours.temperature == pytest.approx(theirs["temperature"])
    assert ours.top_p == pytest.approx(theirs["top_p"])
    # Off on both: left out, each would have a default of its own.
    assert ours.HasField("min_p")
    assert (ours.min_p, theirs["min_p"]) == (0.0, 0)
    assert theirs["samplers"] == ["top_k", "top_p", "temperature"]


def test_a_prompt_is_sent_as_what_it_is() -> None:
    assert generate_request("m", "some text", 5).text == "some text"
    assert list(generate_request("m", [3, 4], 5).token_ids.ids) == [3, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt-characters", "0:9"], "LOW of at least 1"),
        (["--answer-tokens", "128:16"], "LOW below HIGH"),
        (["--objective", "1000"], "TTFT_MS:GAP_MS"),
        (["--objective", "1000:0"], "above 0"),
        (["--temperature", "-1"], "--temperature: must be at least 0"),
        (["--rate", "0"], "--rate must be above 0"),
    ],
    ids=["no characters", "swapped", "one limit", "no gap", "temperature", "rate"],
)
def test_an_odd_load_is_refused_by_name(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--model", "m", *words])
    assert message in capsys.readouterr().err
