"""Restoring is chosen where it was faster than computing."""

from __future__ import annotations

from inferflux.worker.engine.tiers.rates import Rates

KB = 1000
MB = 1000 * KB


def measured(*, prefill_tokens_per_s: float, copied_per_s: float, read_per_s: float) -> Rates:
    rates = Rates()
    rates.prefill.observe(100, 100 / prefill_tokens_per_s)
    rates.copy_in.observe(MB, MB / copied_per_s)
    rates.copy_out.observe(MB, MB / copied_per_s)
    rates.read.observe(MB, MB / read_per_s)
    return rates


def test_what_is_not_known_yet_is_tried() -> None:
    rates = Rates()
    rates.prefill.observe(1, 0.001)
    assert rates.gain_s(MB, MB, 1) > 0
    assert rates.is_worth_keeping(MB, 1)


def test_the_faster_of_restoring_and_computing_is_chosen() -> None:
    rates = measured(prefill_tokens_per_s=1000, copied_per_s=1000 * MB, read_per_s=10 * MB)
    # 100 tokens take 0.1 s to compute; 2 MB 0.002 s to copy and 0.2 s to read.
    assert rates.gain_s(0, 2 * MB, 100) > 0
    assert rates.gain_s(2 * MB, 2 * MB, 100) < 0
    assert rates.gain_s(2 * MB, 2 * MB, 300) > 0
    assert rates.gain_s(4 * MB, 2 * MB, 300) < 0


def test_a_file_is_read_whole_and_copied_in_part() -> None:
    rates = measured(prefill_tokens_per_s=1000, copied_per_s=10 * MB, read_per_s=1000 * MB)
    assert rates.gain_s(4 * MB, MB // 2, 100) > 0
    assert rates.gain_s(4 * MB, 4 * MB, 100) < 0


def test_what_is_refused_for_long_is_tried_again() -> None:
    rates = measured(prefill_tokens_per_s=1000, copied_per_s=1000 * MB, read_per_s=10 * MB)
    refused = 0
    while rates.gain_s(2 * MB, 2 * MB, 100) < 0:
        rates.refused(2 * MB, 2 * MB, 100)
        refused += 1
        assert refused < 200
    assert refused > 10


def test_what_is_doubted_is_what_made_restoring_slow() -> None:
    rates = measured(prefill_tokens_per_s=1000, copied_per_s=1000 * MB, read_per_s=10 * MB)
    copy_s, read_s = rates.copy_in.seconds_per_unit, rates.read.seconds_per_unit
    rates.refused(2 * MB, 2 * MB, 100)
    assert rates.copy_in.seconds_per_unit == copy_s
    assert rates.read.seconds_per_unit < read_s
    read_s = rates.read.seconds_per_unit
    rates.refused(2 * MB, 2 * MB, 1)  # the copy alone takes longer
    assert rates.copy_in.seconds_per_unit < copy_s
    assert rates.read.seconds_per_unit == read_s


def test_an_average_follows_what_is_seen() -> None:
    rates = Rates()
    rates.prefill.observe(10, 1.0)
    for _ in range(50):
        rates.prefill.observe(10, 2.0)
    assert 0.19 < rates.prefill.seconds_per_unit < 0.2
    rates.prefill.observe(0, 5.0)
    assert rates.prefill_s(100) < 20.0
