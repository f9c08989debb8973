"""docs/architectures.md: what works with each architecture (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill

from .families import FAMILIES
from .trying import TRIALS

LOADS = "loads"
COLUMNS = (LOADS, *TRIALS)
_SHARING = {"full": "whole", "window": "window", "checkpoints": "checkpoints", "none": "none"}
_HEAD = """\
# Architectures

{about}

| column | tried |
|---|---|
{loads}| serves | prompts of one step and of several, one after the other |
| batches | four requests at once |
| caches | a conversation goes on, branches, and is asked again: some of its prompt is not computed again |
| parks | more requests than the KV cache holds: some leave it for host memory, and go on |
| moves | an answer that another worker had begun; a conversation whose state had left the cache |

[Prefixes](caching.md) are shared whole, as long as the window of the last tokens is there, or from
checkpoints of a recurrent state.

"""
_ABOUT = (
    "Which architectures were tried, and how. For operators who choose a model. "
    "`{command}` makes this page. For each row it writes a tiny model of random weights, with "
    "{vocabulary}, and an engine serves it in every way that it can. Each token of each greedy answer "
    "is compared with what llama.cpp alone computes after the tokens before it, in a context of its "
    "own: it must be the best one, or tie with it (its logit at most 3 % of their spread below). No "
    "trained model was run for this page."
)
_LOADS = "| loads | a worker process reads the file, loads it, answers, unloads it |\n"


def page_of(results: Mapping[str, Mapping[str, str]], *, is_small: bool) -> str:
    """The page.

    Args:
        results: by architecture: by column empty where it works, else why not; `sharing`.
        is_small: whether the vocabularies are the demo model's.
    """
    columns = [column for column in COLUMNS if any(column in found for found in results.values())]
    head = ["architecture", "models", *columns, "prefixes"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    reasons = []
    for name, found in results.items():
        marks = ["yes" if found.get(column, "not tried") == "" else "**no**" for column in columns]
        reasons += [f"- `{name}`, {column}: {found[column]}" for column in columns if found.get(column)]
        sharing = _SHARING.get(found.get("sharing", ""), "")
        lines.append(f"| `{name}` | {FAMILIES[name].runs} | " + " | ".join([*marks, sharing]) + " |")
    about = _ABOUT.format(
        command="make architectures ARGS=--small" if is_small else "make architectures",
        vocabulary="the demo model's vocabulary" if is_small else "llama.cpp's vocabulary of such models",
    )
    head_of_page = _HEAD.format(about=fill(about, 110), loads=_LOADS if LOADS in columns else "")
    return head_of_page + "\n".join([*lines, *([""] if reasons else []), *reasons]) + "\n"
