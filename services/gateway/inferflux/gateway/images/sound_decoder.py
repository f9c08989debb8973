"""`python -m inferflux.gateway.images.sound_decoder PARENT_PID MEMORY_BYTES CPU_S SECONDS SKELETON TOKENIZER`

Decodes one sound, and counts the tokens that it becomes: libmtmd computes its spectrum for that. Its file,
WAV or MP3, comes in on stdin. Out on stdout go the pieces that it becomes, and its samples at the rate that
the projector wants: see `split`. It is bounded and ends as `decoder` is and does.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from google.protobuf.message import DecodeError

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.sounds import FEWEST_SAMPLES, MAX_SAMPLES, Samples, unpacked_sound
from inferflux.v1 import tokenizer_pb2

from .decoder import run
from .inputs import is_sound_file

_LENGTH = struct.Struct("<I")
# 1 is full scale. What is far louder overflows in projectors.
_LOUDEST = 1000.0


def main() -> None:
    skeleton, tokenizer = (Path(argument) for argument in sys.argv[5:7])
    run(lambda data, seconds: decode(data, skeleton, tokenizer, most_s=seconds))


def decode(data: bytes, skeleton: Path, tokenizer: Path, *, most_s: int) -> bytes:
    """The pieces and the samples of a sound's file.

    Args:
        skeleton: of the projector. tokenizer: the model's.

    Raises:
        ValueError: another format, broken, or too long; says which.
    """
    # Once the bounds are set.
    import numpy as np

    from inferflux.common.llama.mtmd import Mtmd, MtmdError
    from inferflux.common.llama.vocab import Vocab, VocabError

    if not is_sound_file(data):
        raise ValueError("it is no WAV or MP3")
    try:
        mtmd = Mtmd(skeleton, Vocab.load(tokenizer).model)
        if not mtmd.takes_audio:
            raise ValueError("the projector takes no sounds")
        rate = mtmd.sample_rate
        sound = Samples(rate, mtmd.samples_of(data))
        most = min(most_s * rate, MAX_SAMPLES)
        if sound.count > most:
            raise ValueError(f"it is {sound.count / rate:.1f} s long; at most {most / rate:.0f} s are taken")
        if sound.count < FEWEST_SAMPLES:
            raise ValueError("there are no samples in it, or just one")
        if not np.abs(np.frombuffer(sound.pcm, "<f4")).max() <= _LOUDEST:  # so that NaN is refused too
            raise ValueError(f"it has samples that are no numbers, or beyond {_LOUDEST:g} times full scale")
        layout = mtmd.layout(sound.count)
    except (MtmdError, VocabError) as error:
        raise ValueError(str(error)) from None
    media = tokenizer_pb2.StoredMedia()
    for piece in layout:
        media.pieces.add(cells=piece) if isinstance(piece, int) else media.pieces.add(token_ids=piece)
    head = media.SerializeToString()
    return _LENGTH.pack(len(head)) + head + sound.packed()


def split(made: bytes) -> tuple[tokenizer_pb2.StoredMedia, bytes]:
    """(the pieces, the packed samples) that `decode` made.

    Raises:
        InvalidArgument: it is something else.
    """
    try:
        (length,) = _LENGTH.unpack_from(made)
        end = _LENGTH.size + length
        media = tokenizer_pb2.StoredMedia.FromString(made[_LENGTH.size : end])
    except (struct.error, DecodeError):
        raise InvalidArgument("the sound's pieces are cut off", field="data") from None
    unpacked_sound(made[end:])
    if not media.pieces:
        raise InvalidArgument("the sound has no pieces", field="data")
    return media, made[end:]


if __name__ == "__main__":
    main()
