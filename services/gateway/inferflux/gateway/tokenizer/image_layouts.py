"""How a model's prompts hold images of which size, by libmtmd, and sounds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from inferflux.common.contract.requests.images import FEWEST_TOKENS, MAX_PARTS, MOST_TOKENS
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

    def of(self, path: Path | None, vocab: Vocab) -> Callable[[tokenizer_pb2.StoredMedia], Layout]:
        """Return what gives the pieces of an image; it raises TokenizerFaultErrors.

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
        return lambda media: _layout(projector, vocab, media)


def layout_of_pieces(media: tokenizer_pb2.StoredMedia, vocab: Vocab) -> Layout:
    """The pieces of a sound, which were counted when it was decoded.

    Raises:
        TokenizerFaultError: the model cannot take it.
    """
    return _checked([piece.cells or list(piece.token_ids) for piece in media.pieces], vocab, media)


def _layout(projector: Mtmd, vocab: Vocab, media: tokenizer_pb2.StoredMedia) -> Layout:
    try:
        layout = projector.layout((media.width, media.height))
    except MtmdError as error:
        raise _bad_media(media, str(error)) from None
    return _checked(layout, vocab, media)


def _checked(layout: Layout, vocab: Vocab, media: tokenizer_pb2.StoredMedia) -> Layout:
    runs = [piece for piece in layout if isinstance(piece, int)]
    beside = [token for piece in layout if not isinstance(piece, int) for token in piece]
    if any(not 0 <= token < vocab.size for token in beside) or len(beside) > _MOST_BESIDE:
        raise _bad_projector("the vocabulary lacks tokens that its projector puts around images and sounds")
    if not runs or len(runs) > MAX_PARTS or min(runs) < FEWEST_TOKENS or sum(runs) > MOST_TOKENS:
        raise _bad_media(media, f"it would take {sum(runs)} tokens")
    return layout


def _bad_media(media: tokenizer_pb2.StoredMedia, why: str) -> TokenizerFaultError:
    if media.pieces:
        message = f"the model does not take a sound of this length: {why}"
        return TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_AUDIO, message)
    message = f"the model does not take an image of {media.width} x {media.height} pixels: {why}"
    return TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_IMAGE, message)


def _bad_projector(why: str) -> TokenizerFaultError:
    message = f"images and sounds of this model cannot be counted: {why}"
    return TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_PROJECTOR, message)
