"""Sequence breakers as token ids."""

from __future__ import annotations

import threading

from inferflux.v1 import generation_pb2
from inferflux.worker.engine.sampling.breakers import MAX_TAIL, BreakerFinder, Spellings, find_breakers


class Letters:
    """A vocabulary of some words and all letters, which tokenizes letter by letter."""

    words = ("ab", "xab", "xa", "a", "b", "c", "bc", "", "é")

    @property
    def size(self) -> int:
        return len(self.words)

    def spelling(self, token: int) -> bytes:
        return self.words[token].encode()

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special
        assert not parse_special
        return [self.words.index(letter) for letter in text.decode()]


VOCAB = Letters()
SPELLINGS = Spellings(map(VOCAB.spelling, range(VOCAB.size)))


def test_a_token_with_the_text_is_a_breaker_by_itself() -> None:
    found = find_breakers(["b"], SPELLINGS, VOCAB)
    assert found == {0: [()], 1: [()], 4: [()], 6: [()]}


def test_a_token_that_ends_with_its_beginning_needs_the_rest() -> None:
    found = find_breakers(["abc"], SPELLINGS, VOCAB)
    assert found == {0: [(5,)], 1: [(5,)], 2: [(4, 5)], 3: [(4, 5)]}


def test_a_text_over_the_border_of_two_tokens_is_in_neither() -> None:
    assert find_breakers(["ca"], SPELLINGS, VOCAB) == {5: [(3,)], 6: [(3,)]}


def test_several_texts_are_breakers_together() -> None:
    assert find_breakers(["c", "ac"], SPELLINGS, VOCAB) == {5: [()], 6: [()], 3: [(5,)], 2: [(5,)]}


def test_a_part_of_a_character_is_not_tokenized() -> None:
    spellings = Spellings([*map(VOCAB.spelling, range(VOCAB.size)), b"\xc3"])
    assert find_breakers(["é"], spellings, VOCAB) == {8: [()]}


def test_a_long_rest_is_cut() -> None:
    found = find_breakers(["x" + "a" * 30], Spellings([b"x", b"a"]), VOCAB)
    assert [len(tail) for tail in found[0]] == [MAX_TAIL]


def test_breakers_are_found_in_another_thread_and_once() -> None:
    threads = list[int]()

    class Watched(Letters):
        def spelling(self, token: int) -> bytes:
            threads.append(threading.get_ident())
            return super().spelling(token)

    finder = BreakerFinder(Watched())
    breakers = generation_pb2.SequenceBreakers(texts=["abc"])
    asked = generation_pb2.SamplingParams(dry_multiplier=0.5, dry_sequence_breakers=breakers)
    assert finder.of(generation_pb2.SamplingParams(dry_sequence_breakers=breakers)) is None
    first = finder.of(asked)
    assert first is not None
    assert first.result(timeout=10) == find_breakers(["abc"], SPELLINGS, VOCAB)
    assert finder.of(asked) is first
    assert len(threads) == VOCAB.size
    assert set(threads) != {threading.get_ident()}
    finder.close()
