"""How a model's prompts hold images of which size, by libmtmd."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from inferflux.common.images import FEWEST_TOKENS, MAX_PARTS, MOST_TOKENS
from inferflux.common.llama.mtmd import Layout, Mtmd, MtmdError
from inferflux.common.llama.vocab import Vocab
from inferflux.v1 import tokenizer_pb2

from .tokenizer_fault import TokenizerFaultError

# A model has another projector when its worker was configured anew.
_MOST_PROJECTORS = 4
_MOST_BESIDE = 4096


def length_of(layout: Layout) -> int:
    """Tokens of an image, those around it among them."""
    return sum(piece if isinstance(piece, int) else len(piece) for piece in layout)


class Layouts:
    """Projectors without weights, by the path of their file, each loaded when it is first asked for."""

    def __init__(self) -> None:
        self._loaded: dict[Path, Mtmd] = {}
        self._loading = threading.Lock()

    def of(self, path: Path | None, vocab: Vocab) -> Callable[[int, int], Layout]:
        """What gives the pieces of an image of some width and height; raises TokenizerFaultErrors.

        Raises:
            TokenizerFaultError: libmtmd cannot use the projector.
        """
        if path is None:
            raise _bad_projector("the model has no projector")
        with self._loading:
            projector = self._loaded.get(path)
            if projector is None:
                if len(self._loaded) >= _MOST_PROJECTORS:
                    raise _bad_projector("the model had too many projectors")
                try:
                    projector = self._loaded[path] = Mtmd(path, vocab.model)
                except MtmdError as error:
                    raise _bad_projector(str(error)) from None
        return lambda width, height: _checked(projector, vocab, width, height)


def _checked(projector: Mtmd, vocab: Vocab, width: int, height: int) -> Layout:
    try:
        layout = projector.layout(width, height)
    except MtmdError as error:
        raise _bad_image(width, height, str(error)) from None
    runs = [piece for piece in layout if isinstance(piece, int)]
    beside = [token for piece in layout if not isinstance(piece, int) for token in piece]
    if any(not 0 <= token < vocab.size for token in beside) or len(beside) > _MOST_BESIDE:
        raise _bad_projector("the vocabulary lacks tokens that its projector puts around images")
    if not runs or len(runs) > MAX_PARTS or min(runs) < FEWEST_TOKENS or sum(runs) > MOST_TOKENS:
        raise _bad_image(width, height, f"it would take {runs[:8]} tokens")
    return layout


def _bad_image(width: int, height: int, why: str) -> TokenizerFaultError:
    message = f"the model does not take an image of {width} x {height} pixels: {why}"
    return TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_IMAGE, message)


def _bad_projector(why: str) -> TokenizerFaultError:
    message = f"images of this model cannot be counted: {why}"
    return TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_PROJECTOR, message)
