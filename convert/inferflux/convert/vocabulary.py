"""The tokens of a model, as llama.cpp wants them, from tokenizer.json, tokenizer.model or vocab.txt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import gguf

from .errors import ConversionError
from .fields import TOKENIZER_BYTES, Fields, is_text, read_bounded, read_fields, read_fields_if_there
from .pre_tokenizers import pre_tokenizer_of
from .sentencepiece import read_pieces

WORD_START: Final = "\u2581"
_CONTINUES: Final = "##"
_MOST_TOKENS: Final = 4_000_000
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_LOOKS_SPECIAL = re.compile(r"<\|.*\|>|<(?:unused|reserved)\d+>|\[(?:PAD|UNK|CLS|SEP|MASK)\]")
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTES = (
    gguf.TokenType.NORMAL,
    gguf.TokenType.UNKNOWN,
    gguf.TokenType.CONTROL,
    gguf.TokenType.USER_DEFINED,
    gguf.TokenType.UNUSED,
    gguf.TokenType.BYTE,
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of their ids.

    Attributes:
        model: llama.cpp's name of the way texts become tokens: gpt2 is byte-level BPE, llama SentencePiece's
            BPE, bert WordPiece.
        pre: of gpt2, how texts are split before.
        flags: metadata that say whether something is so.
    """

    model: str
    tokens: Sequence[str]
    types: Sequence[int]
    pre: str = "default"
    scores: Sequence[float] = ()
    flags: Mapping[str, bool] = field(default_factory=dict)

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write all but special tokens, merges and the chat template."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(list(self.tokens))
        writer.add_token_types(list(self.types))
        if self.scores:
            writer.add_token_scores(list(self.scores))
        for name, value in self.flags.items():
            writer.add_bool(name, value)

    def filled(self, size: int) -> Vocabulary:
        """The same with a token for each row of the embeddings: many models have more rows.

        Raises:
            ConversionError: it has more tokens than the embeddings have rows.
        """
        missing = size - len(self.tokens)
        if missing < 0:
            raise ConversionError(
                f"config.json: vocab_size: {size:,}, and there are {len(self.tokens):,} tokens"
            )
        return replace(
            self,
            tokens=[*self.tokens, *(_unused(i) for i in range(len(self.tokens), size))],
            types=[*self.types, *[_UNUSED] * missing],
            scores=[*self.scores, *[-1000.0] * missing] if self.scores else (),
        )


def read_vocabulary(folder: Path) -> Vocabulary:
    """The tokens of the model in `folder`.

    Raises:
        ConversionError: it has none of the files, or one that is not understood; names it.
    """
    config = read_fields_if_there(folder / "tokenizer_config.json", TOKENIZER_BYTES)
    if (folder / "tokenizer.json").is_file():
        return _of_tokenizer(read_fields(folder / "tokenizer.json", TOKENIZER_BYTES), config)
    if (folder / "tokenizer.model").is_file():
        return _of_pieces(folder, config)
    if (folder / "vocab.txt").is_file():
        listed = read_bounded(folder / "vocab.txt", TOKENIZER_BYTES).decode(errors="replace").splitlines()
        return word_pieces(listed, lowers=config.flag("do_lower_case", True))
    raise ConversionError(f"{folder}: it has no tokenizer.json, tokenizer.model or vocab.txt")


def word_pieces(tokens: Sequence[str], *, lowers: bool = True, special: Sequence[str] = ()) -> Vocabulary:
    """A WordPiece vocabulary; llama.cpp marks where a word begins instead of where it goes on."""
    types = [_CONTROL if token in special or _LOOKS_SPECIAL.fullmatch(token) else _NORMAL for token in tokens]

    def spelled(token: str, kind: int) -> str:
        if kind == _CONTROL:
            return token
        return token.removeprefix(_CONTINUES) if token.startswith(_CONTINUES) else WORD_START + token

    # Two keys that gguf has no method for; llama.cpp lowers and strips where they are missing.
    flags = {} if lowers else dict.fromkeys(map("tokenizer.ggml.normalizer.{}".format, _NORMALIZES), False)
    return Vocabulary("bert", list(map(spelled, tokens, types)), types, flags=flags)


_NORMALIZES = ("lowercase", "strip_accents")


def _of_tokenizer(tokenizer: Fields, config: Fields) -> Vocabulary:
    model = tokenizer.inner("model")
    if model is None:
        raise tokenizer.error("model", "it is missing")
    added = {entry.integer("id", at_least=0, at_most=_MOST_TOKENS): entry for entry in _added(tokenizer)}
    kind = model.text("type", "BPE")
    if kind == "WordPiece":
        if model.text("continuing_subword_prefix", _CONTINUES) != _CONTINUES:
            raise model.error("continuing_subword_prefix", f"it is not {_CONTINUES}")
        normalizer = tokenizer.inner("normalizer") or Fields({}, tokenizer.said)
        lowers = normalizer.flag("lowercase", config.flag("do_lower_case", True))
        special = [entry.text("content") for entry in added.values() if entry.flag("special", False)]
        return word_pieces(_by_id(model, added), lowers=lowers, special=special)
    if kind != "BPE":
        raise model.error("type", f"{kind[:40]!r} is not converted: BPE and WordPiece are")
    tokens = _by_id(model, added)
    if model.flag("byte_fallback", False):
        return _of_merges(tokenizer, model, tokens, added)
    types = [_type_of(i, token, added) for i, token in enumerate(tokens)]
    return Vocabulary("gpt2", tokens, types, pre=pre_tokenizer_of(tokenizer))


def _of_merges(
    tokenizer: Fields, model: Fields, tokens: Sequence[str], added: Mapping[int, Fields]
) -> Vocabulary:
    """SentencePiece's BPE, written as merges: the earlier a merge, the higher the score of what it makes."""
    unknown = model.values.get("unk_token")
    ranks: dict[str, int] = {}
    for merged in _merges(model):
        ranks.setdefault(merged, len(ranks))
    types = [_type_of(i, token, added) for i, token in enumerate(tokens)]
    for i, token in enumerate(tokens):
        if token == unknown:
            types[i] = _UNKNOWN
        elif types[i] == _NORMAL and _BYTE.fullmatch(token):
            types[i] = _BYTES
    scores = [-float(ranks[token]) if token in ranks else -1000.0 - len(ranks) for token in tokens]
    flags = {gguf.Keys.Tokenizer.ADD_PREFIX: _adds_space(tokenizer)}
    return Vocabulary("llama", tokens, types, scores=scores, flags=flags)


def _merges(model: Fields) -> Iterator[str]:
    """Token that each merge makes, in order. A merge is a text with a blank, or a pair."""
    for merge in model.items("merges"):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise model.error("merges", f"{str(merge)[:60]!r} is not a pair of tokens")
        yield pair[0] + pair[1]


def _adds_space(tokenizer: Fields) -> bool:
    """True if the tokenizer puts a blank before a text."""
    normalizer = tokenizer.inner("normalizer")
    parts = [] if normalizer is None else [normalizer.values, *normalizer.items("normalizers")]
    if any(isinstance(part, dict) and part.get("type") == "Prepend" for part in parts):
        return True
    pre = tokenizer.inner("pre_tokenizer")
    parts = [] if pre is None else [pre.values, *pre.items("pretokenizers")]
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "Metaspace":
            scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
            return bool(scheme != "never")
    return False


def _of_pieces(folder: Path, config: Fields) -> Vocabulary:
    """A SentencePiece model, and the tokens that Hugging Face's files add to it."""
    pieces = read_pieces(folder / "tokenizer.model")
    tokens, types, scores = list(pieces.texts), list(pieces.types), list(pieces.scores)
    listed = read_fields_if_there(folder / "added_tokens.json", TOKENIZER_BYTES)
    more: dict[int, Fields] = {}
    for name in listed.values:
        more[listed.integer(name, at_least=0, at_most=_MOST_TOKENS)] = Fields({"content": name}, listed.said)
    decoder = config.inner("added_tokens_decoder") or Fields({}, config.said)
    for key in decoder.values:
        if not key.isdecimal() or len(key) > 7 or (entry := decoder.inner(key)) is None:
            raise decoder.error(key[:40], "it is no token's id")
        more[int(key)] = entry
    for i in sorted(more):
        if i > len(tokens):
            raise more[i].error("content", f"its id is {i}, and there are {len(tokens)} tokens before it")
        if i < len(tokens):
            if types[i] == _NORMAL:
                tokens[i], types[i] = more[i].text("content"), _type_of_added(more[i])
            continue
        tokens.append(more[i].text("content"))
        types.append(_type_of_added(more[i]))
        scores.append(-1000.0)
    adds_space = config.flag("add_prefix_space", pieces.adds_space)
    return Vocabulary(
        "llama", tokens, types, scores=scores, flags={gguf.Keys.Tokenizer.ADD_PREFIX: adds_space}
    )


def _added(tokenizer: Fields) -> Iterator[Fields]:
    for entry in tokenizer.items("added_tokens"):
        if not isinstance(entry, dict):
            raise tokenizer.error("added_tokens", "it has what is no object")
        yield Fields(entry, f"{tokenizer.said}: added_tokens")


def _type_of(i: int, token: str, added: Mapping[int, Fields]) -> int:
    if i in added:
        return _type_of_added(added[i])
    return int(_UNUSED if token == _unused(i) else _NORMAL)


def _unused(i: int) -> str:
    """Name of an id that no token has."""
    return f"[PAD{i}]"


def _type_of_added(entry: Fields) -> int:
    is_special = entry.flag("special", False) or _LOOKS_SPECIAL.fullmatch(entry.text("content"))
    return int(_CONTROL if is_special else _USER)


def _by_id(model: Fields, added: Mapping[int, Fields]) -> list[str]:
    """Tokens in the order of their ids; an id that nothing has is unused."""
    listed = model.inner("vocab")
    if listed is None or not listed.values:
        raise model.error("vocab", "it is missing")
    found: dict[int, str] = {}
    for token in listed.values:
        i = listed.integer(token, at_least=0, at_most=_MOST_TOKENS)
        if i in found:
            raise listed.error(token[:60], f"its id {i} is {found[i][:60]!r} as well")
        found[i] = token
    found |= {i: entry.text("content") for i, entry in added.items()}
    size = max(found) + 1
    if size > 2 * len(found) + 1000:
        raise listed.error("ids", f"they go up to {size - 1:,}, and there are {len(found):,}")
    return [found.get(i, _unused(i)) for i in range(size)]


def write_special(writer: gguf.GGUFWriter, folder: Path, vocabulary: Vocabulary) -> None:
    """Write merges, special tokens and the chat template: gguf reads them off the folder.

    Raises:
        ConversionError: its files are not as gguf expects them.
    """
    is_bpe = vocabulary.model == "gpt2"
    try:
        special: Any = gguf.SpecialVocab(folder, load_merges=is_bpe, n_vocab=len(vocabulary.tokens))
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OSError, RecursionError) as error:
        raise ConversionError(
            f"tokenizer.json, tokenizer_config.json: {error or type(error).__name__}"
        ) from None
    if not _is_template(special.chat_template):
        raise ConversionError("tokenizer_config.json: chat_template: it is neither a text nor texts by name")
    if is_bpe and not special.merges:
        raise ConversionError("tokenizer.json: merges: there are none")
    if vocabulary.model == "bert":
        for kind, i in special_pieces(vocabulary.tokens).items():
            special.special_token_ids.setdefault(kind, i)
    # BERT's, which gguf writes as the one that a text begins with.
    special.special_token_ids.pop("cls", None)
    special.add_to_gguf(writer, quiet=True)


def _is_template(given: object) -> bool:
    """True if gguf can write it: nothing, a text, or a list of objects with a name and a text each."""
    if isinstance(given, list):
        return all(
            isinstance(each, dict) and is_text(each.get("name")) and is_text(each.get("template"))
            for each in given
        )
    return given is None or is_text(given)


def special_pieces(tokens: Sequence[str]) -> dict[str, int]:
    """Ids of BERT's special tokens, by gguf's names: a text is `[CLS] text [SEP]`.

    Raises:
        ConversionError: there is none of `[CLS]`, `[SEP]` or `[UNK]`.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    names = {"bos": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]", "mask": "[MASK]"}
    if missing := [names[kind] for kind in ("bos", "sep", "unk") if names[kind] not in ids]:
        raise ConversionError(f"the vocabulary has no {missing[0]}")
    return {kind: ids[token] for kind, token in names.items() if token in ids}
