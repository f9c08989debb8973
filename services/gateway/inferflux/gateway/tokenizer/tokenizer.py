"""A model's tokenizer inside its process: template and vocabulary, with the guards llama.cpp needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inferflux.common.contract.requests.images import placeholders
from inferflux.common.llama.mtmd import Layout
from inferflux.common.llama.vocab import Vocab, VocabError, memory_to_load
from inferflux.common.process.machine.free_memory import at_most
from inferflux.v1 import generation_pb2, inference_pb2, tokenizer_pb2

from .image_layouts import Layouts, layout_of_pieces, length_of
from .rendering import Asked, Rendered, Renderer
from .tokenizer_fault import TokenizerFaultError

if TYPE_CHECKING:
    from inferflux.common.text.constraints.compiling import Compiler

# llama.cpp's pre-tokenizers recurse once per character of a run of one class: with the 512 MiB stack of a
# text thread, 500,000 characters were fine, so this is well inside.
MAX_RUN_CHARS = 300_000

_AS_USUAL = Asked()

_RUNS = re.compile(r"[^\W\d_]+|\d+|\s+|[^\w\s]+|_+")


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Token ids of a prompt, and where images are among them."""

    ids: list[int]
    images: Sequence[generation_pb2.PromptImage]


class Tokenizer:
    """One model's vocabulary and chat template. `tokenize` may be called from several threads.

    Raises:
        TokenizerFaultError: the file holds no vocabulary.
    """

    def __init__(self, path: Path, *, max_rendered_bytes: int) -> None:
        try:
            with at_most(memory_to_load(path.stat().st_size)):
                self._vocab = Vocab.load(path)
                self._vocab.try_out()
        except VocabError as error:
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TOKENIZER, str(error)) from None
        self._compiler: Compiler | None = None
        self._longest = max(self._vocab.longest_token_bytes, 1)
        self._renderer = Renderer(self._vocab, max_rendered_bytes)
        self._layouts = Layouts()

    @property
    def has_chat_template(self) -> bool:
        return self._vocab.chat_template is not None or self._vocab.tool_template is not None

    def __del__(self) -> None:
        vocab = getattr(self, "_vocab", None)
        if vocab is not None:
            vocab.close()

    def render(
        self,
        messages: Sequence[inference_pb2.ChatMessage],
        tools: Sequence[inference_pb2.Tool] = (),
        asked: Asked = _AS_USUAL,
    ) -> Rendered:
        """The prompt for a conversation; raises as `Renderer.render`."""
        return self._renderer.render(messages, tools, asked)

    def compile(self, constraint: generation_pb2.StructuredConstraint) -> None:
        """Do what a worker does with a constraint, and make the check of its answers.

        Raises:
            TokenizerFaultError: it cannot be used.
        """
        # With the first constraint only: a process that sees none is smaller without.
        from inferflux.common.text.constraints.checking import ConstraintError, check_of
        from inferflux.common.text.constraints.compiling import Compiler

        if self._compiler is None:
            self._compiler = Compiler(self._vocab)
        try:
            self._compiler.compile(constraint)
            check_of(constraint)
        except ConstraintError as error:
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_CONSTRAINT, str(error)) from None

    def described(self) -> tokenizer_pb2.TokenizerDescribed:
        """Describe it to programs that tokenize for themselves."""
        return tokenizer_pb2.TokenizerDescribed(
            chat_template=self._vocab.chat_template or "", **self._vocab.template_tokens
        )

    def tokenize(self, text: str, context_length: int, *, is_bare: bool = False) -> list[int]:
        """Token ids of a prompt: special tokens recognised, and BOS first where the model wants one.

        Args:
            is_bare: without BOS.

        Raises:
            TokenizerFaultError: it cannot fit into `context_length` tokens (0: no limit), or llama.cpp
                cannot tokenize it.
        """
        ids = self._ids([text], context_length).ids
        has_bos = self._vocab.adds_bos and ids[:1] == [self._vocab.bos]
        return ids[1:] if is_bare and has_bos else ids

    def tokenize_rendered(
        self,
        rendered: Rendered,
        context_length: int,
        images: Sequence[tokenizer_pb2.StoredMedia] = (),
        projector: Path | None = None,
    ) -> PromptIds:
        """As `tokenize`; special tokens that messages or tools spell are text.

        A vocabulary that puts a blank before a text's first word does so after each cut, too.

        Args:
            images: those of the prompt.
            projector: the file that tells how prompts hold them.

        Raises:
            TokenizerFaultError: as `tokenize`; or an image cannot be taken.
        """
        layouts = [
            layout_of_pieces(image, self._vocab)
            if image.pieces
            else self._layouts.of(projector, self._vocab)(image)
            for image in images
        ]
        return self._ids(rendered.parts, context_length, images, layouts)

    def _ids(
        self,
        parts: Sequence[str | int],
        context_length: int,
        images: Sequence[tokenizer_pb2.StoredMedia] = (),
        layouts: Sequence[Layout] = (),
    ) -> PromptIds:
        n_bytes = sum(len(part.encode()) for part in parts if isinstance(part, str))
        at_least = -(-n_bytes // self._longest) + sum(map(length_of, layouts))
        if context_length and at_least > context_length:
            message = (
                f"this model's maximum context length is {context_length} tokens; the prompt has at least "
                f"{at_least}"
            )
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_TOO_LONG, message)
        ids: list[int] = []
        placed: list[generation_pb2.PromptImage] = []
        try:
            for part in parts:
                if isinstance(part, str):
                    check_runs(part)
                    ids += self._vocab.tokenize(part.encode(), add_special=False, parse_special=True)
                    continue
                _place(images[part], layouts[part], ids, placed)
        except VocabError as error:
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TEXT, str(error)) from None
        if self._vocab.adds_bos and self._vocab.bos >= 0 and (not ids or ids[0] != self._vocab.bos):
            for image in placed:
                image.position += 1
            return PromptIds([self._vocab.bos, *ids], placed)
        return PromptIds(ids, placed)

    def tokenize_texts(
        self, texts: Sequence[str], context_length: int, *, query: str | None, truncate: bool
    ) -> list[list[int]]:
        """Token ids of texts that are to be embedded, or ranked by how well they answer a query.

        A pair is put together as llama.cpp's server does it: BOS, query, EOS, SEP, text, EOS, those that the
        vocabulary wants.

        Args:
            truncate: whether what is beyond `context_length` tokens is cut off: of a text, not of the query.

        Raises:
            TokenizerFaultError: one cannot be tokenized, or the query leaves no room for a text.
        """
        if query is None:
            whole = [self._plain(text, add_special=True) for text in texts]
            return [self._cut(ids, context_length) for ids in whole] if truncate else whole
        before, between, after = self._vocab.pair_marks
        head = before + self._plain(query, add_special=False) + between
        room = context_length - len(head) - len(after)
        if truncate and room < 1:
            message = f"the query has {len(head)} tokens; the context holds {context_length}"
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_TOO_LONG, message)
        bodies = (self._plain(text, add_special=False) for text in texts)
        return [head + (body[:room] if truncate else body) + after for body in bodies]

    def tokenize_bare(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts by themselves; special tokens that they spell are text.

        Raises:
            TokenizerFaultError: one cannot be tokenized.
        """
        return [self._plain(text, add_special=False) for text in texts]

    def tokenize_gap(self, prefix: str, suffix: str, context_length: int) -> list[int]:
        """Token ids of the prompt of an answer between two texts, in the order that llama.cpp's server has:
        prefix, suffix, middle.

        Raises:
            TokenizerFaultError: the vocabulary has no such tokens, or they cannot fit into the context.
        """
        marks = self._vocab.gap_marks
        if marks is None:
            message = "the model's vocabulary has no tokens to fill gaps with"
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_NO_INFILL, message)
        before, between, after = marks
        texts = [self._plain(text, add_special=False) for text in (prefix, suffix)]
        ids = [before, *texts[0], between, *texts[1], after]
        if self._vocab.adds_bos and self._vocab.bos >= 0:
            ids.insert(0, self._vocab.bos)
        if context_length and len(ids) >= context_length:
            message = (
                f"this model's maximum context length is {context_length} tokens; the prompt has {len(ids)}"
            )
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_TOO_LONG, message)
        return ids

    def _plain(self, text: str, *, add_special: bool) -> list[int]:
        try:
            check_runs(text)
            return self._vocab.tokenize(text.encode(), add_special=add_special, parse_special=False)
        except VocabError as error:
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TEXT, str(error)) from None

    def _cut(self, ids: list[int], context_length: int) -> list[int]:
        """Return what fits, and the mark at the end where there was one."""
        if len(ids) <= context_length:
            return ids
        end = ids[-1:] if ids[-1] in self._vocab.end_marks else []
        return ids[: context_length - len(end)] + end

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; what is not UTF-8 is replaced.

        Control tokens are as the file spells them: tokenizing the text gives them again.

        Raises:
            TokenizerFaultError: an id is not in the vocabulary.
        """
        vocab = self._vocab
        try:
            pieces = [vocab.piece(token) or vocab.text(token).encode() for token in token_ids]
        except VocabError as error:
            raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TEXT, str(error)) from None
        return b"".join(pieces).decode("utf-8", "replace")


def _place(
    image: tokenizer_pb2.StoredMedia,
    layout: Layout,
    ids: list[int],
    placed: list[generation_pb2.PromptImage],
) -> None:
    """Put an image's token ids and placeholders at the end of a prompt."""
    part = 0
    for piece in layout:
        if not isinstance(piece, int):
            ids += piece
            continue
        placed.append(
            generation_pb2.PromptImage(
                id=image.id, object=image.object, position=len(ids), tokens=piece, part=part
            )
        )
        ids += placeholders(image.id, piece, part)
        part += 1


def check_runs(text: str) -> None:
    """Refuse what would overflow the stack of llama.cpp's pre-tokenizer.

    Raises:
        TokenizerFaultError: more than MAX_RUN_CHARS letters, digits, blanks or signs in a row.
    """
    if len(text) <= MAX_RUN_CHARS:
        return
    longest = max((match.end() - match.start() for match in _RUNS.finditer(text)), default=0)
    if longest > MAX_RUN_CHARS:
        message = f"{longest} characters of one kind in a row; at most {MAX_RUN_CHARS} can be tokenized"
        raise TokenizerFaultError(tokenizer_pb2.TOKENIZER_FAULT_BAD_TEXT, message)
