"""Switches of a chat template: which of its variables say how long the model thinks (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .capabilities import Capabilities
from .templates import ChatTemplate, Json

# Variables that turn thoughts on and off: in the order in which they are looked for.
_ON_OFF: Final[Mapping[str, tuple[Any, Any]]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning": (True, False),
    "thinking_mode": ("enabled", "disabled"),
    "thinking_option": ("on", "off"),
}
# Variables that say how much, in words of their own; and words for each effort, the nearest first.
_LEVELS: Final = ("reasoning_effort", "reasoning_strength", "thinking_effort")
_WORDS: Final[Mapping[str, Sequence[str]]] = {
    "none": ("none", "no_think", "off", "minimal"),
    "minimal": ("minimal", "low"),
    "low": ("low", "minimal"),
    "medium": ("medium", "high"),
    "high": ("high",),
    "xhigh": ("xhigh", "max", "high"),
    "max": ("max", "xhigh", "high"),
}
# For templates that show any word.
_PLAIN: Final = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
# Tokens; -1: as many as it likes.
_BUDGET: Final = "thinking_budget"
_BUDGETS: Final = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": -1,
    "max": -1,
}


class SwitchError(Exception):
    """The template has no switch for what was asked.

    Attributes:
        field: of the request.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def switches_of(
    template: ChatTemplate, reads: Capabilities, given: Json, effort: str, *, may_lack: bool = False
) -> Json:
    """The template's variables for a request.

    Args:
        given: variables by name. Those that the template does not read have no effect; `enable_thinking`
            stands for whichever turns thoughts on and off.
        effort: one of `generation_limits.REASONING_EFFORTS`, or empty.

        may_lack: whether what the template has no switch for is left out.

    Raises:
        SwitchError: the model would think otherwise than was asked.
    """
    made: Json = {}
    try:
        if effort:
            made |= _effort(template, reads, effort)
        wanted = given.get("enable_thinking")
        if isinstance(wanted, bool) and "enable_thinking" not in template.variables:
            made |= _thinking(template, reads, wanted)
    except SwitchError:
        if not may_lack:
            raise
    return made | given


def _thinking(template: ChatTemplate, reads: Capabilities, wanted: bool) -> Json:
    name = next((name for name in _ON_OFF if name in template.variables), None)
    if name is not None:
        return {name: _ON_OFF[name][0 if wanted else 1]}
    off = _off_by_level(template, reads)
    if off is not None:
        return _effort(template, reads, "max") if wanted else off
    if wanted == reads.thinks:
        return {}
    does = "thinks always" if reads.thinks else "does not think"
    message = f"enable_thinking: the model {does}: its chat template has no switch for it"
    raise SwitchError("enable_thinking", message)


def _effort(template: ChatTemplate, reads: Capabilities, effort: str) -> Json:
    name = next((name for name in _ON_OFF if name in template.variables), None)
    if effort == "none":
        off = {} if name is None else {name: _ON_OFF[name][1]}
        by_level = _off_by_level(template, reads)
        if off or by_level or not reads.thinks:
            return (by_level or {}) | off
        message = "reasoning_effort: the model thinks always: its chat template has no switch for it"
        raise SwitchError("reasoning_effort", message)
    made: Json = {} if name is None else {name: _ON_OFF[name][0]}
    if _BUDGET in template.variables:
        made[_BUDGET] = _BUDGETS[effort]
    for level in _LEVELS:
        if level in template.variables:
            made |= _level(template, reads, level, effort)
    if made or effort == "medium":
        return made
    does = "thinks" if reads.thinks else "does not think"
    message = f"reasoning_effort: the model {does}, and its chat template has no switch for how long"
    raise SwitchError("reasoning_effort", message)


def _off_by_level(template: ChatTemplate, reads: Capabilities) -> Json | None:
    """Thoughts off by a variable that says how much; None without one."""
    if _BUDGET in template.variables:
        return {_BUDGET: 0}
    for level in _LEVELS:
        known = template.compared_with(level) if level in template.variables else frozenset()
        for word in _WORDS["none"]:
            if word in known and reads.accepts({level: word}):
                return {level: word}
    return None


def _level(template: ChatTemplate, reads: Capabilities, name: str, effort: str) -> Json:
    known = template.compared_with(name)
    words = [word for word in _WORDS[effort] if word in known]
    for word in (*words, _PLAIN.get(effort, effort)):
        if reads.accepts({name: word}):
            return {name: word}
    return {}
