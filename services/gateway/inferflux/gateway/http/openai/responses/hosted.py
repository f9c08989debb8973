"""Tools that OpenAI hosts, and what they left in a conversation: they are skipped, and that is said. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferflux.gateway.http.openai import custom_tools
from inferflux.gateway.http.openai.bodies import ToolBody

# Of a response's metadata.
SKIPPED = "inferflux_skipped_tools"
# OpenAI's bound of such a value.
_MOST_CHARS = 512

# Items of an input that repeat what a hosted tool did, or say nothing to a model.
SKIPPED_ITEMS = frozenset(
    {
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
        "computer_call",
        "computer_call_output",
        "file_search_call",
        "ghost_snapshot",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)


def functions(tools: Sequence[ToolBody] | None) -> list[ToolBody]:
    """The functions and custom tools among a response's tools."""
    return [tool for tool in tools or [] if _is_served(tool)]


def skipped(tools: Sequence[ToolBody] | None) -> list[ToolBody]:
    """The others, which the model is not told of."""
    return [tool for tool in tools or [] if not _is_served(tool)]


def _is_served(tool: ToolBody) -> bool:
    """Agents send custom tools with grammars, and go on without them."""
    return tool.type == "function" or (tool.type == custom_tools.TYPE and custom_tools.is_served(tool))


def metadata_of(tools: Sequence[ToolBody] | None) -> Mapping[str, str]:
    """Tell in a response's metadata which tools it leaves out."""
    types = sorted({tool.type for tool in skipped(tools)})
    return {SKIPPED: ", ".join(types)[:_MOST_CHARS]} if types else {}


def places(tools: Sequence[ToolBody] | None) -> Mapping[str, str]:
    """Where the client has functions, for errors."""
    given = [i for i, tool in enumerate(tools or []) if _is_served(tool)]
    return {f"tools[{ours}]": f"tools[{theirs}]" for ours, theirs in enumerate(given) if ours != theirs}
