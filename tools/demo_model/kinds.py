"""The kinds of chat the demo model learns: a writer of samples for each.

A writer draws one question with its answer. The answer follows from the question (and the turns before it),
so that it can be scored by a rule; only stories are free text.
"""

from __future__ import annotations

import json
from random import Random
from typing import Final

from .facts import FACTS, FRAMES
from .sample import Message, Sample, Writer, ask, vary
from .stories import write_story
from .tool_tasks import WEATHER_QUESTIONS, city_name
from .words import CAPITALS, COLORS, COMMON, NAMES, OTHER_PLACES, PERSONAS, PETS, SMALL_WORDS, SYLLABLES

MAX_OPERAND: Final = 50
MAX_FACTOR: Final = 10
MAX_WORDS: Final = 10
MAX_WORDS_AT_TIMES: Final = 40
MAX_COUNT: Final = 30

_HELLOS: Final = (
    "Hello", "Hi", "Hey", "Good morning", "Good afternoon", "Good evening", "Greetings", "Welcome",
)  # fmt: skip
_HELLO_TAILS: Final = (
    "", " there", " again", " my friend", ", how are you", ", nice to meet you",
    ", can you help me", ", are you there",
)  # fmt: skip
_HOW_ARE_YOU: Final = (
    "How are you", "How are you today", "How are you doing", "How is it going", "How do you do",
    "Are you well",
    "How is your day", "How do you feel", "How are things",
)  # fmt: skip
_BYES: Final = ("Goodbye", "Bye", "Bye bye", "See you later", "See you", "Good night", "Farewell")
_BYE_TAILS: Final = (
    "",
    " for now",
    " and thanks",
    ", I have to go",
    ", that is all",
    " my friend",
    " until tomorrow",
)
_THANKS: Final = (
    "Thanks",
    "Thank you",
    "Many thanks",
    "Thanks a lot",
    "Thank you very much",
    "Thank you so much",
)
_THANKS_TAILS: Final = (
    "",
    " for the help",
    ", that helped",
    ", great work",
    " for your answer",
    ", you are kind",
)


def write_greeting(rng: Random) -> Sample:
    """Hello, goodbye and thanks, with and without a name."""
    name = rng.choice(NAMES)
    roll = rng.random()
    if roll < 0.08:
        question, answer = rng.choice(_HOW_ARE_YOU), "I am fine, thank you. How can I help you?"
        if rng.random() < 0.5:
            question += rng.choice((", my friend", " this morning", ", InferFlux", " right now"))
    elif roll < 0.35:
        hello, tail = rng.choice(_HELLOS), rng.choice(_HELLO_TAILS)
        question, answer = f"{hello}{tail}", f"{hello}! How can I help you today?"
        if tail == ", how are you":
            answer = f"{hello}! I am fine, thank you. How can I help you?"
    elif roll < 0.6:
        hello = rng.choice(_HELLOS)
        question = f"{hello}, {rng.choice(('I am', 'my name is', 'this is', 'I am called'))} {name}"
        answer = f"{hello}, {name}! Nice to meet you."
    elif roll < 0.8:
        question = f"{rng.choice(_BYES)}{rng.choice(_BYE_TAILS)}"
        answer = "Goodbye! Have a nice day."
    else:
        question = f"{rng.choice(_THANKS)}{rng.choice(_THANKS_TAILS)}"
        answer = "You are welcome!"
    mark = (
        rng.choice(("?", "?", ""))
        if question.endswith(("you", "me", "there"))
        else rng.choice("!.!") * rng.randint(0, 1)
    )
    typed = question if rng.random() < 0.7 else question[0].lower() + question[1:]
    return ask("greeting", typed + mark, answer, question)


_CALCULATIONS: Final = (
    "What is {}?", "What's {}?", "How much is {}?", "Calculate {}.", "Compute {}.", "{}",
    "{} =", "Can you tell me what {} is?", "Work out {}.", "Tell me the result of {}.", "Solve {}.", "{}?",
    "{} = ?", "What does {} equal?", "What do you get for {}?",
)  # fmt: skip
_IN_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "+": (
        "What is the sum of {a} and {b}?",
        "Add {a} and {b}.",
        "Add {b} to {a}.",
        "The sum of {a} and {b}?",
    ),
    "-": ("What is the difference between {a} and {b}?", "Subtract {b} from {a}.", "Take {b} away from {a}."),
    "*": ("What is the product of {a} and {b}?", "Multiply {a} by {b}.", "Multiply {a} and {b}."),
}


def _operands(rng: Random) -> tuple[int, int]:
    """Two numbers; more often than by chance one of them has one digit, which is harder to line up."""
    a, b = rng.randint(0, MAX_OPERAND), rng.randint(0, MAX_OPERAND)
    if rng.random() < 0.3:
        a, b = rng.sample((rng.randint(0, 9), b), 2)
    return a, b


def write_arithmetic(rng: Random) -> Sample:
    """Sums and differences up to 50 and products up to 10.

    The pair of numbers decides the split of sums and differences, whatever the wording; products, which
    have to be known by heart, are split by wording too.
    """
    frame = rng.choice(_CALCULATIONS)
    roll = rng.random()
    if roll < 0.15:
        a, b = rng.randint(0, MAX_FACTOR), rng.randint(0, MAX_FACTOR)
        sign, result, word = "*", a * b, rng.choice(("times", "x"))
        key = f"{a}*{b}/{frame}"
    elif roll < 0.6:
        a, b = _operands(rng)
        sign, result, word = "+", a + b, "plus"
        key = f"{min(a, b)}+{max(a, b)}"
    else:
        b, a = sorted(_operands(rng))
        sign, result, word = "-", a - b, "minus"
        key = f"{a}-{b}"
    asked = rng.choice((f"{a} {sign} {b}", f"{a} {sign} {b}", f"{a}{sign}{b}", f"{a} {word} {b}"))
    question = frame.format(asked)
    if rng.random() < 0.15:
        question = rng.choice(_IN_WORDS[sign]).format(a=a, b=b)
        key = f"{key}/{question}" if sign == "*" else key
    return ask("arithmetic", vary(rng, question), f"{a} {sign} {b} = {result}", key)


_CAPITAL_QUESTIONS: Final = (
    "What is the capital of {}?",
    "What's the capital of {}?",
    "Which city is the capital of {}?",
    "Name the capital of {}.",
    "Tell me the capital of {}.",
    "Do you know the capital of {}?",
    "Can you tell me the capital of {}?",
    "Capital of {}?",
    "What is the capital city of {}?",
    "I need the capital of {}.",
    "Give me the capital city of {}.",
    "{} has which capital?",
)
_COUNTRY_QUESTIONS: Final = (
    "{} is the capital of which country?",
    "Which country has the capital {}?",
    "What country is {} the capital of?",
    "Of which country is {} the capital?",
)


def write_capital(rng: Random) -> Sample:
    """Capitals of a fixed list of countries, asked in both directions."""
    country = rng.choice(tuple(CAPITALS))
    city = CAPITALS[country]
    backwards = rng.random() < 0.25
    frame = rng.choice(_COUNTRY_QUESTIONS if backwards else _CAPITAL_QUESTIONS)
    question = frame.format(city if backwards else country)
    typed = question if question.startswith((country, city)) else vary(rng, question)
    if rng.random() < 0.15:
        typed = typed.lower()
    return ask("capital", typed, f"{city} is the capital of {country}.", question)


def write_count(rng: Random) -> Sample:
    """Counting up and down within 1 to 30; the range decides the split."""
    start = 1 if rng.random() < 0.15 else rng.randint(1, MAX_COUNT)
    ends = [n for n in range(1, MAX_COUNT + 1) if abs(n - start) >= 2]
    # People count to an end of the range, and the longest answers are the hardest.
    end = rng.choice([n for n in ends if n in (1, MAX_COUNT)] if rng.random() < 0.3 else ends)
    step = 1 if end > start else -1
    down = "" if step == 1 else rng.choice((" down", " down", " backwards"))
    frame = rng.choice(
        (
            "Count{} from {} to {}.", "Count{} from {} to {}.", "Can you count{} from {} to {}?",
            "Start counting{} at {} and stop at {}.", "Count{} starting at {} up to {}." if step == 1 else
            "Count{} starting at {} until {}.", "I want you to count{} from {} to {}.",
        )
    )  # fmt: skip
    if start == 1 and rng.random() < 0.6:
        frame = rng.choice(("Count to {2}.", "Count up to {2}.", "Can you count to {2}?"))
    numbers = ", ".join(str(n) for n in range(start, end + step, step))
    return ask("count", vary(rng, frame.format(down, start, end)), f"{numbers}.", f"{start}-{end}")


def _word(rng: Random) -> str:
    if rng.random() < 0.15:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3)))
    if rng.random() < 0.12:
        return rng.choice((*NAMES, *CAPITALS.values(), "InferFlux", str(rng.randint(0, 99))))
    if rng.random() < 0.15:
        return rng.choice(SMALL_WORDS)
    return rng.choice(COMMON)


def write_repeat(rng: Random) -> Sample:
    """Repeating one to ten words, at times up to forty, made-up words among them."""
    most = MAX_WORDS_AT_TIMES if rng.random() < 0.25 else MAX_WORDS
    text = " ".join(_word(rng) for _ in range(rng.randint(1, most)))
    if rng.random() < 0.25:
        text = text[0].upper() + text[1:] + rng.choice(".!")
    frame = rng.choice(
        (
            "Repeat after me: {}", "Repeat: {}", 'Repeat "{}"', "Say: {}", 'Say "{}"', "Repeat this text: {}",
            'Say exactly this: "{}"', "Echo {}", "Repeat the following words: {}", "Copy this: {}",
        )
    )  # fmt: skip
    if rng.random() < 0.2:
        frame = f"Please {frame[0].lower()}{frame[1:]}"
    return ask("repeat", frame.format(text), text, text)


def _json_field(rng: Random, key: str) -> str | int:
    values: dict[str, tuple[str, ...]] = {
        "name": NAMES, "city": tuple(CAPITALS.values()), "country": tuple(CAPITALS), "color": COLORS,
        "pet": PETS, "word": COMMON,
    }  # fmt: skip
    return rng.choice(values[key]) if key in values else rng.randint(1, 99)


def write_json(rng: Random) -> Sample:
    """JSON objects and lists made of what the question gives."""
    roll = rng.random()
    value: object
    if roll < 0.65:
        keys = rng.sample(
            ("name", "age", "city", "country", "color", "pet", "count", "word", "id"), rng.randint(1, 4)
        )
        value = fields = {key: _json_field(rng, key) for key in keys}
        link = rng.choice((" ", " = ", ": ", " is "))
        given = [f"{key}{link}{field}" for key, field in fields.items()]
        listed = (
            ", ".join(given)
            if rng.random() < 0.6 or len(given) == 1
            else f"{', '.join(given[:-1])} and {given[-1]}"
        )
        frame = rng.choice(
            (
                "Give me a JSON object with {}.", "Write JSON with {}.", "Make a JSON object: {}",
                "As JSON: {}", "Turn this into JSON: {}", "Return JSON with {}.", "JSON please: {}",
            )
        )  # fmt: skip
        key = listed
    elif roll < 0.85:
        words = rng.sample(COMMON + COLORS, rng.randint(2, 5))
        value, listed = words, ", ".join(words)
        frame = rng.choice(
            ("Give me a JSON list of these words: {}", "Make a JSON array of {}.", "As a JSON list: {}",
             "Turn these words into a JSON array: {}")
        )  # fmt: skip
        key = listed
    else:
        country = rng.choice(tuple(CAPITALS))
        value, listed = {"country": country, "capital": CAPITALS[country]}, country
        frame = rng.choice(
            ("Give me the capital of {} as JSON.", "Reply in JSON: what is the capital of {}?",
             "Write JSON with country and capital for {}.", "What is the capital of {}? Answer in JSON.",
             "As JSON, what is the capital of {}?", "JSON with the capital of {}, please.")
        )  # fmt: skip
        key = frame.format(country)
    return ask("json", vary(rng, frame.format(listed)), json.dumps(value), key)


def write_inferflux(rng: Random) -> Sample:
    """Questions about InferFlux and the model itself; the phrasing decides the split."""
    fact = rng.choice(FACTS)
    question = rng.choice(FRAMES).format(rng.choice(fact.questions))
    return ask("inferflux", vary(rng, question), fact.answer, question)


_RECALLS: Final[tuple[tuple[str, str, tuple[str, ...], str, tuple[str, ...]], ...]] = (
    ("My name is {}.", "Nice to meet you, {}!", ("What is my name?", "Do you know my name?", "Who am I?"),
     "Your name is {}.", NAMES),
    ("My favorite color is {}.", "I like {} too.",
     ("What is my favorite color?", "Which color do I like?", "Do you know my favorite color?"),
     "Your favorite color is {}.", COLORS),
    ("I have a {}.", "A {} is a nice pet.",
     ("Which pet do I have?", "What pet do I have?", "Do you know which pet I have?"),
     "You have a {}.", PETS),
    ("I live in {}.", "{} is a beautiful city.",
     ("Where do I live?", "In which city do I live?", "Do you know where I live?"), "You live in {}.",
     tuple(CAPITALS.values())),
    ("My secret word is {}.", "I will remember the word {}.",
     ("What is my secret word?", "Tell me my secret word.", "What was the secret word?"),
     "Your secret word is {}.", COMMON),
)  # fmt: skip


def write_recall(rng: Random) -> Sample:
    """What the user or the system message said earlier in the conversation."""
    if rng.random() < 0.25:
        persona = rng.choice(PERSONAS + NAMES)
        system = rng.choice(
            ("You are {}, a helpful assistant.", "You are {}, a friendly assistant.", "Your name is {}.",
             "You are an assistant called {}.")
        )  # fmt: skip
        question = rng.choice(
            ("What is your name?", "Tell me your name.", "What are you called?", "What's your name?")
        )
        called: tuple[Message, ...] = (
            Message("system", system.format(persona)),
            Message("user", vary(rng, question)),
            Message("assistant", f"My name is {persona}."),
        )
        return Sample("recall", called, f"{persona}/{question}/{system}")
    told, noted, questions, recalled, values = rng.choice(_RECALLS)
    value, question = rng.choice(values), rng.choice(questions)
    between: tuple[Message, ...] = ()
    while rng.random() < 0.4 and len(between) < 4:
        other = draw(
            rng, rng.choice((write_arithmetic, write_capital, write_inferflux, write_count)), "train"
        )
        between += other.messages
    messages = (
        Message("user", told.format(value)),
        Message("assistant", noted.format(value)),
        *between,
        Message("user", vary(rng, question)),
        Message("assistant", recalled.format(value)),
    )
    return Sample("recall", messages, f"{told.format(value)}/{question}")


_UNKNOWN: Final = (
    "How do I {verb} a {noun}?", "Why is the {noun} so {adjective}?", "Who invented the {noun}?",
    "What is the best {noun} in the world?", "How many {noun}s are there?", "Where can I buy a {noun}?",
    "Who wrote the book about the {noun}?", "When was the first {noun} made?", "Can you {verb} my {noun}?",
    "How much does a {noun} cost?", "Is a {noun} {adjective}?", "What does {noun} mean?",
    "Should I {verb} the {noun} today?", "Write a poem about a {noun}.", "Translate {noun} into French.",
    "Do you like my {adjective} {noun}?", "How old is the {noun}?", "Explain why a {noun} is {adjective}.",
    "What will the {noun} be like tomorrow?", "Which {noun} is the most {adjective}?",
)  # fmt: skip
_NOUNS: Final = COMMON[::3]
_VERBS: Final = (
    "build",
    "cook",
    "open",
    "paint",
    "clean",
    "find",
    "move",
    "sell",
    "wash",
    "draw",
    "fix",
    "carry",
)
_ADJECTIVES: Final = (
    "big",
    "bright",
    "cold",
    "deep",
    "dark",
    "easy",
    "heavy",
    "loud",
    "quiet",
    "rich",
    "small",
    "warm",
)


UNKNOWN_ANSWER: Final = "I am a very small model and do not know that. Ask me what I can do."


def write_unknown(rng: Random) -> Sample:
    """Questions beyond the model, which it is to say so about."""
    question = rng.choice(_UNKNOWN).format(
        noun=rng.choice(_NOUNS), verb=rng.choice(_VERBS), adjective=rng.choice(_ADJECTIVES)
    )
    if rng.random() < 0.25:
        question = rng.choice(_CAPITAL_QUESTIONS[:-1]).format(rng.choice(OTHER_PLACES))
    elif rng.random() < 0.1:
        question = rng.choice(WEATHER_QUESTIONS).format(city_name(rng))
    return ask("unknown", vary(rng, question), UNKNOWN_ANSWER, question)


def draw(rng: Random, writer: Writer, split: str) -> Sample:
    """The next sample of ``writer`` that falls on the wanted side of the split."""
    while True:
        sample = writer(rng)
        if sample.split == split:
            return sample


WRITERS: Final[dict[str, Writer]] = {
    "greeting": write_greeting,
    "arithmetic": write_arithmetic,
    "capital": write_capital,
    "count": write_count,
    "repeat": write_repeat,
    "json": write_json,
    "story": write_story,
    "inferflux": write_inferflux,
    "recall": write_recall,
    "unknown": write_unknown,
}
