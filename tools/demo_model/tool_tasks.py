"""What calculator and weather are asked: a question, the call it needs, a result, and the answer from it."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from .sample import Message, Split, split_of, vary
from .toolbox import Signature, Toolbox
from .words import CAPITALS, OTHER_CITIES, SYLLABLES

NOT_HELPED: Final = "I am sorry, the tool could not help with that."


@dataclass(frozen=True, slots=True)
class Task:
    """One call and what comes of it.

    Attributes:
        question: What the user asks.
        ask_also: The same as the end of a question that asks for two things.
        call: The call as the JSON that stands in its tags.
        result: What the tool says.
        answer: What the model makes of it.
        topic, key: What decides the split.
    """

    question: str
    ask_also: str
    call: str
    result: str
    answer: str
    topic: str
    key: str

    @property
    def split(self) -> Split:
        return split_of(self.topic, self.key)


def _call(signature: Signature, value: str) -> str:
    return json.dumps({"name": signature.name, "arguments": {signature.argument: value}}, ensure_ascii=False)


_QUESTIONS: Final = (
    "What is {}?", "What is {}?", "What's {}?", "How much is {}?", "Calculate {}.", "Compute {}.", "{}",
    "{} =", "Can you tell me what {} is?", "Work out {}.", "Tell me the result of {}.", "Solve {}.",
    "Use the calculator: {}", "Use the calculator to work out {}.", "I need to know what {} is.",
)  # fmt: skip
_OPERATORS: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
_SPOKEN: Final = {"+": ("plus",), "-": ("minus",), "*": ("times", "x"), "/": ("divided by",)}


def number_text(value: float) -> str:
    """A result as calculators show it: no point after whole numbers, four places at the most."""
    return str(int(value)) if value == int(value) else f"{value:.4f}".rstrip("0")


def _operand(rng: Random) -> int:
    return rng.randint(0, rng.choices((20, 50, 100, 1000, 10_000), (0.2, 0.25, 0.2, 0.2, 0.15))[0])


def calculation(rng: Random, signature: Signature) -> Task:
    """Two numbers, at times three; sums and differences fall on the same side as without tools."""
    a, b, sign = _operand(rng), _operand(rng), rng.choices("+-*/", (0.4, 0.25, 0.25, 0.1))[0]
    topic, key = "arithmetic", f"{min(a, b)}+{max(a, b)}" if sign == "+" else f"{a}{sign}{b}"
    if sign == "/":
        b = rng.randint(2, 20)
        a = b * rng.randint(1, 50) if rng.random() < 0.7 else a
        topic, key = "calculator", f"{a}/{b}"
    result = _OPERATORS[sign](a, b)
    expression = f"{a} {sign} {b}"
    asked = rng.choice((expression, expression, f"{a}{sign}{b}", f"{a} {rng.choice(_SPOKEN[sign])} {b}"))
    if sign in "+-*" and rng.random() < 0.12:
        last, more = rng.choice("+-"), rng.randint(1, 99)
        bracketed = sign in "+-" and rng.random() < 0.4
        result = _OPERATORS[sign](a, b)
        if bracketed:
            last, more = "*", rng.randint(2, 20)
            expression = f"({expression})"
        result = _OPERATORS[last](result, more)
        expression = f"{expression} {last} {more}"
        asked, topic, key = expression, "calculator", expression
    shown = number_text(result)
    if rng.random() < 0.05:
        shown = f"{float(shown)}"
    told = shown if rng.random() < 0.75 else rng.choice(
        (f'{{"result": {shown}}}', f'{{"{signature.argument}": "{expression}", "result": {shown}}}',
         f"{expression} = {shown}", f"The result is {shown}.")
    )  # fmt: skip
    answer = f"{expression} = {shown}"
    if rng.random() < 0.03:
        told, answer = _failure(rng), NOT_HELPED
    question = vary(rng, rng.choice(_QUESTIONS).format(asked))
    return Task(question, f"what is {asked}", _call(signature, expression), told, answer, topic, key)


WEATHER_QUESTIONS: Final = (
    "What is the weather in {}?", "What is the weather in {}?", "What's the weather like in {}?",
    "How is the weather in {}?", "Weather in {}?", "What is the weather in {} today?",
    "Tell me the weather in {}.", "Is it raining in {}?", "Is it cold in {}?", "How warm is it in {}?",
    "What is the temperature in {}?", "Do I need an umbrella in {}?", "How is the weather in {} right now?",
    "What is the weather like in {} today?", "Is it sunny in {}?", "Check the weather in {}.",
    "I am going to {}. How is the weather there?", "Get the weather for {}.", "{} weather",
)  # fmt: skip
_SKIES: Final = (
    "sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy", "cold", "warm", "hot", "dry",
    "wet", "rain", "snow", "fog", "light rain", "heavy rain", "heavy snow", "partly cloudy", "clear sky",
    "light snow",
    "strong wind", "cloudy with some rain", "sunny and warm", "cold and wet", "windy and cold", "overcast",
)  # fmt: skip


def city_name(rng: Random) -> str:
    """A capital, another big city, or a name that does not exist."""
    roll = rng.random()
    if roll < 0.45:
        return rng.choice(tuple(CAPITALS.values()))
    if roll < 0.75:
        return rng.choice(OTHER_CITIES)
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()


def _report(rng: Random, city: str) -> tuple[str, str]:
    """What a weather tool says, and the sentence made of it."""
    sky, degrees = rng.choice(_SKIES), rng.randint(-15, 40)
    unit = rng.choice((" degrees", " degrees", " °C", "°C", " C", "C"))
    roll = rng.random()
    if roll < 0.12:
        return rng.choice((sky, json.dumps({"weather": sky}))), f"The weather in {city} is {sky}."
    if roll < 0.2:
        told = rng.choice((f"{degrees}{unit}", f"{degrees}", json.dumps({"temperature": degrees})))
        return told, f"It is {degrees} degrees in {city}."
    if roll < 0.6:
        told = rng.choice(
            (f"{sky}, {degrees}{unit}", f"{degrees}{unit} and {sky}", f"{degrees}{unit}, {sky}",
             f"{sky} and {degrees}{unit}", f"{city}: {sky}, {degrees}{unit}", f"{sky} {degrees}{unit}",
             f"The weather in {city} is {sky}, {degrees}{unit}.")
        )  # fmt: skip
    else:
        fields: dict[str, object] = {
            rng.choice(("temperature", "temperature", "temp", "degrees", "temperature_c")): degrees,
            rng.choice(("condition", "condition", "weather", "conditions", "sky", "description")): sky,
        }
        if rng.random() < 0.3:
            fields = dict(reversed(fields.items()))
        if rng.random() < 0.3:
            fields = {rng.choice(("city", "location")): city, **fields}
        if rng.random() < 0.15:
            fields["wind"] = rng.randint(0, 40)
        told = json.dumps(fields, separators=(",", ":") if rng.random() < 0.2 else None)
    return told, f"The weather in {city} is {sky}, {degrees} degrees."


def forecast(rng: Random, signature: Signature) -> Task:
    """The weather in a city; the city decides the split."""
    city = city_name(rng)
    question = vary(rng, rng.choice(WEATHER_QUESTIONS).format(city))
    if city in CAPITALS.values() and rng.random() < 0.08:
        question = question.lower()
    told, answer = _report(rng, city)
    if rng.random() < 0.03:
        told, answer = _failure(rng), NOT_HELPED
    return Task(
        question, f"how is the weather in {city}", _call(signature, city), told, answer, "weather", city
    )


def _failure(rng: Random) -> str:
    return rng.choice(
        ("error", "Error: timeout", "error: not found", "error: division by zero", "failed",
         json.dumps({"error": "not found"}), json.dumps({"error": "timeout"}), "Error: not available")
    )  # fmt: skip


def draw_task(rng: Random, tools: Toolbox, split: Split) -> Task:
    """A task for one of the tools there are, on the wanted side of the split.

    Raises:
        ValueError: there is neither a calculator nor a weather tool.
    """
    if not (tools.calculator or tools.weather):
        raise ValueError("no tool that tasks are written for")
    while True:
        if tools.calculator and (not tools.weather or rng.random() < 0.5):
            task = calculation(rng, tools.calculator)
        elif tools.weather:
            task = forecast(rng, tools.weather)
        if task.split == split:
            return task


def exchange(rng: Random, tools: Toolbox, split: Split) -> tuple[Message, ...]:
    """Question, call, result and answer; at times two calls side by side."""
    tasks = [draw_task(rng, tools, split)]
    if rng.random() < 0.12:
        tasks.append(draw_task(rng, tools, split))
    question = tasks[0].question
    if len(tasks) == 2:
        first = tasks[0].ask_also
        link = rng.choice((" and ", ", and "))
        question = f"{first[0].upper()}{first[1:]}{link}{tasks[1].ask_also}?"
    return (
        Message("user", question),
        Message("assistant", "", tuple(task.call for task in tasks)),
        *(Message("tool", task.result) for task in tasks),
        Message("assistant", "\n".join(task.answer for task in tasks)),
    )
