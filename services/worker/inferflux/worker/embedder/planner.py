"""Planning of a step: the texts that it computes (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from .jobs import Job, Tokens


def plan(jobs: Iterable[Job], *, step_tokens: int, most_texts: int) -> list[tuple[Job, Tokens]]:
    """Texts of several jobs, those of the most urgent first, each job's in their order.

    A text is computed whole: pooling looks at all of its tokens. The first one goes in however long it is.
    A text that does not fit ends the step: shorter ones do not pass it, so that long texts do not starve.

    Args:
        step_tokens: that a step is filled up to.
        most_texts: of a step.
    """
    planned: list[tuple[Job, Tokens]] = []
    tokens = 0
    for job in sorted(jobs, key=lambda job: job.order):
        for text in job.waiting:
            if planned and (tokens + text.size > step_tokens or len(planned) == most_texts):
                return planned
            planned.append((job, text))
            tokens += text.size
    return planned
