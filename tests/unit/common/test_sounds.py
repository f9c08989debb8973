"""Samples of sounds on their way."""

from __future__ import annotations

import pytest

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.images import Pixels
from inferflux.common.contract.requests.sounds import Samples, is_sound, sound_id, unpacked_sound


def test_samples_come_back_as_they_were_and_are_told_from_pixels() -> None:
    sound = Samples(16000, bytes(range(12)))
    assert sound.count == 3
    assert unpacked_sound(sound.packed()) == sound
    assert is_sound(sound.packed())
    assert not is_sound(Pixels(1, 1, b"abc").packed())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"IFXPCM1\n",
        Samples(16000, bytes(8)).packed()[:-1],
        Samples(0, bytes(8)).packed(),
        Samples(16000, b"").packed(),
        Pixels(1, 1, b"abc").packed(),
    ],
)
def test_what_are_no_samples_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        unpacked_sound(data)


def test_a_sound_has_another_name_for_each_projector() -> None:
    assert sound_id(b"a", "p") == sound_id(b"a", "p") != sound_id(b"a", "q") != sound_id(b"b", "q")
