"""The kinds of chat in which the request defines tools: a writer of samples for each."""

from __future__ import annotations

from random import Random
from typing import Final

from .kinds import UNKNOWN_ANSWER, WRITERS
from .sample import Message, Sample, Split, Writer, vary
from .tool_tasks import WEATHER_QUESTIONS, calculation, city_name, forecast
from .toolbox import Toolbox, draw_toolbox

_ASIDE: Final = ("greeting", "capital", "count", "repeat", "json", "inferflux", "unknown")


def _calls(sample_kind: str, rng: Random) -> Sample:
    while True:
        tools = draw_toolbox(rng)
        if sample_kind == "calculator" and tools.calculator:
            task = calculation(rng, tools.calculator)
        elif sample_kind == "weather" and tools.weather:
            task = forecast(rng, tools.weather)
        else:
            continue
        messages = (
            Message("user", task.question),
            Message("assistant", "", (task.call,)),
            Message("tool", task.result),
            Message("assistant", task.answer),
        )
        return Sample(sample_kind, messages, task.key, tools=tools, topic=task.topic)


def _until_call(sample: Sample) -> Sample:
    return Sample(sample.kind, sample.messages[:2], sample.key, tools=sample.tools, topic=sample.topic)


def write_calculator(rng: Random) -> Sample:
    """A calculation, and a calculator to call."""
    return _until_call(_calls("calculator", rng))


def write_weather(rng: Random) -> Sample:
    """A question about the weather in a city, and a tool to call."""
    return _until_call(_calls("weather", rng))


def write_tool_result(rng: Random) -> Sample:
    """The answer from what a called tool said."""
    sample = _calls(rng.choice(("calculator", "weather")), rng)
    return Sample("tool_result", sample.messages, sample.key, tools=sample.tools, topic=sample.topic)


def aside(rng: Random, tools: Toolbox) -> Sample:
    """A question that none of ``tools`` is for."""
    kinds = _ASIDE if tools.calculator else (*_ASIDE, "arithmetic", "arithmetic")
    if not tools.weather and rng.random() < 0.3:
        question = rng.choice(WEATHER_QUESTIONS).format(city_name(rng))
        messages = (Message("user", vary(rng, question)), Message("assistant", UNKNOWN_ANSWER))
        return Sample("no_call", messages, question, tools=tools)
    sample = WRITERS[rng.choice(kinds)](rng)
    return Sample("no_call", sample.messages, sample.key, tools=tools, topic=sample.kind)


def write_no_call(rng: Random) -> Sample:
    """A question that none of the tools is for; it is answered as if there were none."""
    return aside(rng, draw_toolbox(rng))


def draw_aside(rng: Random, tools: Toolbox, split: Split) -> Sample:
    """The next such question on the wanted side of the split."""
    while True:
        sample = aside(rng, tools)
        if sample.split == split:
            return sample


TOOL_WRITERS: Final[dict[str, Writer]] = {
    "calculator": write_calculator,
    "weather": write_weather,
    "tool_result": write_tool_result,
    "no_call": write_no_call,
}
