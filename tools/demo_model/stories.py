"""Short stories of 80 to 150 tokens, told from slots so that each one hangs together."""

from __future__ import annotations

from random import Random
from typing import Final

from .sample import Sample, ask, vary
from .words import NAMES, OBJECTS, PLACES, SUBJECTS, TRAITS

MIN_TOKENS: Final = 80
MAX_TOKENS: Final = 150

_OPENINGS: Final = (
    "Once upon a time, {a_trait} {subject} named {name} lived near a quiet {place}.",
    "Long ago, {a_trait} {subject} named {name} lived close to a green {place}.",
    "There was once {a_trait} {subject} named {name}, who lived beside a small {place}.",
)
_FINDS: Final = (
    "One morning, {name} found a strange {object} under an old tree.",
    "One day, {name} saw a shining {object} on the path.",
    "One evening, {name} heard a soft sound and found a lost {object}.",
)
_WONDERS: Final = (
    '"Who lost this {object}?" asked the {subject}, and looked around, but nobody was there.',
    '"This {object} must belong to someone," said the {subject}, and decided to find out who it was.',
    'The {subject} had never seen such {an_object} before, and wanted to know where it came from.',
)  # fmt: skip
_TRAVELS: Final = (
    "So {name} walked all day through rain and wind, and asked everyone on the way.",
    "So {name} took the {object} along and went from door to door until the sun went down.",
    "So {name} followed the long road over the hills, and did not stop to rest.",
)
_MEETINGS: Final = (
    "At last {name} met an old woman, who smiled when she saw the {object}.",
    "At the end of the road stood a small child, who was crying about a lost {object}.",
    "Late at night, {name} met a tired traveler, who had looked for the {object} for many years.",
)
_THANKS: Final = (
    '"You found my {object}! Thank you, {name}," was all that was said, and they both laughed.',
    '"That {object} is mine. You have a good heart, {name}," said the stranger.',
    '"I thought my {object} was gone forever. How can I thank you?" said the stranger.',
)
_ENDINGS: Final = (
    "From that day on, the {subject} was never alone again.",
    "They became good friends, and the {subject} went home happy.",
    "The {subject} went home to the {place} and slept well that night.",
)
_PARTS: Final = (_OPENINGS, _FINDS, _WONDERS, _TRAVELS, _MEETINGS, _THANKS, _ENDINGS)

_ABOUT: Final = (
    "Tell me a story about {what}.",
    "Tell me a short story about {what}.",
    "Write a short story about {what}.",
    "Write a story about {what}.",
    "Can you tell me a story about {what}?",
    "I would like a story about {what}.",
    "Make up a story about {what}.",
    "Give me a short story about {what}.",
)


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def tell(rng: Random, subject: str, trait: str, name: str, thing: str) -> str:
    """One story with the given hero."""
    slots = {
        "subject": subject,
        "a_trait": _article(trait),
        "name": name,
        "object": thing,
        "an_object": _article(thing),
        "place": rng.choice(PLACES),
    }
    return " ".join(rng.choice(part).format(**slots) for part in _PARTS)


def write_story(rng: Random) -> Sample:
    """Someone asks for a story about a hero, sometimes with a trait, a name or a thing."""
    subject, trait = rng.choice(SUBJECTS), rng.choice(TRAITS)
    name, thing = rng.choice(NAMES), rng.choice(OBJECTS)
    mentions = [subject]
    what = _article(subject)
    if rng.random() < 0.4:
        what = _article(f"{trait} {subject}")
        mentions.append(trait)
    roll = rng.random()
    if roll < 0.3:
        what += f" named {name}"
        mentions.append(name)
    elif roll < 0.5:
        what += f" and {_article(thing)}"
        mentions.append(thing)
    question = rng.choice(_ABOUT).format(what=what)
    return ask("story", vary(rng, question), tell(rng, subject, trait, name, thing), what, tuple(mentions))
