"""Decision that one worker computes a prompt and another its answer (pure).

A long prompt delays the answers that are being decoded beside it: each step with a part of it takes longer. A
worker that has prompts alone delays none, and the state of the prompt goes to the worker of the answer while
it is computed. That is the disaggregation of DistServe (Zhong et al., OSDI '24) and Splitwise (Patel et al.,
ISCA '24). As in Mooncake (Qin et al., FAST '25), it is decided for each request, by the time that either way
is expected to take: where the prompt is short, the transfer slow or the prefill worker busy, one worker has
the whole request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# Prompt tokens that are computed sooner than handed over.
LEAST_TOKENS = 128
# The same while no worker has measured its speed.
LEAST_UNMEASURED = 256


class Decision(Enum):
    """What was decided about a request, as metrics name it."""

    SPLIT = "split"
    # It has an image, no second token, or anything else for which it runs in one place.
    UNSUITED = "unsuited"
    SHORT = "short"
    # No prefill worker has room, or the worker of the answer can take no state from any.
    NO_PREFILL = "no_prefill"
    # It would take longer than on one worker.
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Side:
    """A worker that could compute a prompt.

    Attributes:
        tokens: of the prompt that it would have to compute.
        ahead: tokens of other prompts that it computes first.
        delayed: answers that are decoded there meanwhile.
        rate: prompt tokens a second; 0 while that is not known.
    """

    tokens: int
    ahead: int = 0
    delayed: int = 0
    rate: float = 0.0

    @property
    def prefill_s(self) -> float:
        """Seconds until the prompt is computed."""
        return (self.ahead + self.tokens) / self.rate

    @property
    def lost_s(self) -> float:
        """Seconds by which others are later, all together."""
        return self.delayed * self.tokens / self.rate


def decide(prefill: Side, decode: Side, transfer_s: float) -> Decision:
    """Split a request, or do not. Seconds of requests that wait are added up, whichever they are.

    Args:
        prefill, decode: the worker that has prompts alone, and the one that is to have the answer.
        transfer_s: that the state of the prompt takes from one to the other. What goes while the prompt is
            computed costs nothing.
    """
    if not (prefill.rate and decode.rate):
        if decode.tokens < LEAST_UNMEASURED:
            return Decision.SHORT
        return Decision.SPLIT if decode.delayed else Decision.SLOW
    if decode.tokens < LEAST_TOKENS:
        return Decision.SHORT
    rest_s = max(transfer_s - prefill.tokens / prefill.rate, _last_s(transfer_s, prefill.tokens))
    apart_s = prefill.prefill_s + prefill.lost_s + rest_s
    return Decision.SPLIT if apart_s < decode.prefill_s + decode.lost_s else Decision.SLOW


def _last_s(transfer_s: float, tokens: int) -> float:
    """Seconds that the last piece takes, which nothing overlaps."""
    return transfer_s * min(1.0, LEAST_TOKENS / max(1, tokens))
