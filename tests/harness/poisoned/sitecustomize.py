"""On the PYTHONPATH of workers: requests whose id starts with `poison`, and images of 33 x 33 pixels, kill
every engine that runs them.

The engine ends by SIGKILL in the step that makes the request's second new token, as by an abort in native
code: nothing of that step is reported. An image is encoded as a sound of one sample: libmtmd aborts over it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK = ".poison"
_KILLS_AT = 2
_SIZE = (33, 33)


def _arm() -> None:
    from inferflux.worker.engine.step.core import Engine

    compute = Engine.compute
    started: dict[tuple[str, int], int] = {}

    def kill(self: Engine) -> None:
        compute(self)
        for sequence in self.running.values():
            if _MARK in sequence.key:
                first = started.setdefault((sequence.key, sequence.epoch), sequence.generated)
                if sequence.generated - first >= _KILLS_AT - 1 and sequence.generated:
                    os.kill(os.getpid(), signal.SIGKILL)

    Engine.compute = kill  # type: ignore[method-assign]


def _arm_projector() -> None:
    from inferflux.common.llama import mtmd
    from inferflux.v1.engine_pb2 import EngineImage
    from inferflux.worker.engine.media.projector import EncodedRun, Projector

    encode = Projector.encode

    def abort(self: Projector, image: EngineImage) -> Sequence[EncodedRun]:
        if (image.width, image.height) != _SIZE:
            return encode(self, image)
        mtmd._check = lambda *_: None
        return encode(self, EngineImage(pcm=bytes(4)))

    Projector.encode = abort  # type: ignore[method-assign]


if sys.orig_argv[1:3] == ["-m", "inferflux.worker.engine"]:
    _arm()
    _arm_projector()
