"""Flags that several commands have: a dataclass for each group, a field for each flag."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from inferflux.cli.reach.bounds import INT32, UINT32, UINT64
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST

from .constraint import constraint_of
from .generation import Generation
from .sampling import sampling_of

# Groups of flags in the help.
_SAMPLING, _FORMAT, _DELIVERY = "How tokens are drawn", "What the answer looks like", "How it is served"

DEFAULT_MAX_TOKENS = 1024
"""A model that repeats itself ends here."""


@dataclass(frozen=True, slots=True)
class GenerationFlags:
    """Flags of commands that have an answer computed."""

    max_tokens: Annotated[
        int, typer.Option(min=0, max=INT32, help="At most this many new tokens; 0: no limit.")
    ] = DEFAULT_MAX_TOKENS
    temperature: Annotated[
        float | None, typer.Option(help="0 always takes the likeliest token.", rich_help_panel=_SAMPLING)
    ] = None
    max_reasoning_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, max=INT32, help="Close the model's reasoning after this many tokens; 0: no reasoning."
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the likeliest tokens that reach this probability.", rich_help_panel=_SAMPLING
        ),
    ] = None
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            "--sampling",
            metavar="NAME=VALUE",
            help="Set a parameter of sampling by its API name: top_k, min_p, dry_multiplier, "
            "logit_bias=ID:BIAS,... and so on.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", help="The answer ends before this, or another --stop.", rich_help_panel=_SAMPLING
        ),
    ] = None
    stop_token_id: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-token-id",
            min=0,
            max=INT32,
            help="The answer ends after this token id, or another --stop-token-id.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=UINT64,
            help="What is drawn follows from it; with --deterministic the same seed gives the same answer.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None
    deterministic: Annotated[
        bool | None,
        typer.Option(
            help="The same answer whatever else is cached or runs; slower. "
            "[default: as the key or the model is set]",
            rich_help_panel=_SAMPLING,
            show_default=False,
        ),
    ] = None
    priority: Annotated[
        int,
        typer.Option(
            min=LOWEST,
            max=HIGHEST,
            help="Higher is more urgent; 0 is ordinary. What exceeds the key's ceiling is lowered to it.",
            rich_help_panel=_DELIVERY,
        ),
    ] = 0
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the model's own end.", rich_help_panel=_SAMPLING)
    ] = False
    resume_window: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=UINT32,
            metavar="SECONDS",
            help="Resume a lost stream for this long, at most what the gateway allows (300 by default); "
            "0 lets a lost connection cancel the request. By default 30 where there are several gateways, "
            "else 0.",
            rich_help_panel=_DELIVERY,
        ),
    ] = None
    skip_answer_cache: Annotated[
        bool,
        typer.Option(
            "--skip-answer-cache",
            help="Have the answer computed, and do not keep it for others.",
            rich_help_panel=_DELIVERY,
        ),
    ] = False
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="The answer is JSON of this JSON schema.",
            rich_help_panel=_FORMAT,
        ),
    ] = None
    json_object: Annotated[
        bool, typer.Option("--json-object", help="The answer is a JSON object.", rich_help_panel=_FORMAT)
    ] = False
    grammar: Annotated[
        Path | None,
        typer.Option(
            "--grammar",
            metavar="FILE",
            help="The answer is of this grammar: GBNF, or Lark in a .lark file.",
            rich_help_panel=_FORMAT,
        ),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(
            "--regex", help="The whole answer matches this regular expression.", rich_help_panel=_FORMAT
        ),
    ] = None
    choice: Annotated[
        list[str] | None,
        typer.Option(
            "--choice", help="The answer is this, or that of another --choice.", rich_help_panel=_FORMAT
        ),
    ] = None
    speculate: Annotated[
        Literal["off", "ngram", "draft"] | None,
        typer.Option(
            "--speculate",
            metavar="SOURCE",
            help="Where drafts of next tokens come from: off, ngram or draft; else as the worker is set.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None

    def generation(self) -> Generation:
        """Generation that the flags ask for. Raises typer.BadParameter where they contradict each other."""
        constraint = constraint_of(
            self.schema,
            is_json_object=self.json_object,
            grammar=self.grammar,
            regex=self.regex,
            choices=self.choice or [],
        )
        return Generation(
            max_tokens=self.max_tokens or None,
            max_reasoning_tokens=self.max_reasoning_tokens,
            deterministic=self.deterministic,
            temperature=self.temperature,
            top_p=self.top_p,
            sampling=sampling_of(self.sampling or []),
            seed=self.seed,
            stop=self.stop or (),
            stop_token_ids=self.stop_token_id or (),
            priority=self.priority,
            ignores_eos=self.ignore_eos,
            resume_window_s=self.resume_window,
            skips_answer_cache=self.skip_answer_cache,
            constraint=constraint,
            speculation=self.speculate,
        )
