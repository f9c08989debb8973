"""Tools as requests define them: the same two, calculator and weather, in many people's words, and others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call has to spell: the function's name and its one argument's."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request.

    Attributes:
        lines: Each tool's definition as JSON, in the order given.
    """

    lines: tuple[str, ...] = ()
    calculator: Signature | None = None
    weather: Signature | None = None


NO_TOOLS: Final = Toolbox()

_CALCULATOR_NAMES: Final = ("calculator",) * 7 + ("calculate", "calculate", "calc")
_CALCULATOR_ARGUMENTS: Final = ("expression",) * 9 + ("formula",)
_CALCULATOR_TEXTS: Final = (
    "", "Calculate an expression.", "Evaluate an arithmetic expression.", "A calculator.", "Do arithmetic.",
    "Calculates the result of an arithmetic expression", "Evaluates a mathematical expression.",
    "Compute sums, differences and products.", "Perform basic arithmetic", "Calculate", "Does the math.",
    "Work out an arithmetic expression, such as 12 + 7.", "Evaluate a math expression and return the result",
)  # fmt: skip
_EXPRESSION_TEXTS: Final = (
    "The expression, such as 2 + 3", "An expression", "e.g. 12 * 4", "Mathematical expression to evaluate",
    "The expression to calculate", "What to calculate, e.g. '3 + 4'", "Arithmetic expression",
)  # fmt: skip

_WEATHER_NAMES: Final = ("weather",) * 5 + ("get_weather",) * 4 + ("get_current_weather",)
_WEATHER_ARGUMENTS: Final = ("city",) * 8 + ("location",) * 2
_WEATHER_TEXTS: Final = (
    "", "Get the weather in a city.", "Get the current weather of a city", "The weather in a city.",
    "Weather",
    "Tells the weather.", "Look up the weather for a city.", "Get current temperature for a given location.",
    "Returns the current weather.", "Get the weather for a city", "What the weather is like in a city",
)  # fmt: skip
_CITY_TEXTS: Final = (
    "The name of the city", "City name", "The city, e.g. Paris", "City and country e.g. Rome, Italy",
    "The city", "Name of a city, such as Oslo",
)  # fmt: skip

_OTHERS: Final[tuple[tuple[str, str, dict[str, str]], ...]] = (
    ("search", "Search the web.", {"query": "string"}),
    ("send_email", "Send an email.", {"to": "string", "text": "string"}),
    ("get_time", "The time in a zone.", {"zone": "string"}),
    ("translate", "Translate a text.", {"text": "string", "language": "string"}),
    ("set_timer", "Set a timer.", {"minutes": "integer"}),
    ("play_music", "Play a song.", {"title": "string"}),
    ("open_door", "Open a door.", {}),
    ("find_user", "Look up a user by name", {"name": "string"}),
    ("buy", "Order a product.", {"product": "string", "count": "integer"}),
    ("roll_dice", "Roll dice.", {"sides": "integer"}),
    ("read_file", "Read a file", {"path": "string"}),
    ("add_note", "Keep a note.", {"note": "string"}),
)  # fmt: skip


def _sorted(value: Any) -> Any:
    """The same value with the keys of every object in the alphabet's order, as some clients send it."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


def _definition(rng: Random, name: str, text: str, fields: dict[str, dict[str, Any]]) -> str:
    parameters: dict[str, Any] = {"type": "object", "properties": fields}
    if rng.random() < 0.8:
        parameters["required"] = list(fields)
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": name}
    if text:
        function["description"] = text
    function["parameters"] = parameters
    if rng.random() < 0.06:
        function["strict"] = True
    if rng.random() < 0.15:
        function = _sorted(function)
    return json.dumps(function, separators=(",", ":") if rng.random() < 0.08 else None)


def _field(rng: Random, text: str) -> dict[str, Any]:
    field: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.4:
        field["description"] = text
    return field


def _calculator(rng: Random) -> tuple[str, Signature]:
    made = Signature(rng.choice(_CALCULATOR_NAMES), rng.choice(_CALCULATOR_ARGUMENTS))
    fields = {made.argument: _field(rng, rng.choice(_EXPRESSION_TEXTS))}
    return _definition(rng, made.name, rng.choice(_CALCULATOR_TEXTS), fields), made


def _weather(rng: Random) -> tuple[str, Signature]:
    made = Signature(rng.choice(_WEATHER_NAMES), rng.choice(_WEATHER_ARGUMENTS))
    fields = {made.argument: _field(rng, rng.choice(_CITY_TEXTS))}
    return _definition(rng, made.name, rng.choice(_WEATHER_TEXTS), fields), made


def draw_toolbox(rng: Random) -> Toolbox:
    """Calculator and weather, or one of them, or neither; at times another tool with them."""
    which = rng.choices(("both", "calculator", "weather", "neither"), (0.62, 0.13, 0.13, 0.12))[0]
    lines: list[str] = []
    calculator = weather = None
    if which in ("both", "calculator"):
        line, calculator = _calculator(rng)
        lines.append(line)
    if which in ("both", "weather"):
        line, weather = _weather(rng)
        lines.append(line)
    others = rng.randint(1, 2) if which == "neither" else int(rng.random() < 0.15)
    for name, text, fields in rng.sample(_OTHERS, others):
        lines.append(_definition(rng, name, text, {key: {"type": kind} for key, kind in fields.items()}))
    rng.shuffle(lines)
    return Toolbox(tuple(lines), calculator, weather)
