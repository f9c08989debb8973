"""Words that an answer must not have, and biases of texts, as token ids: workers get these alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.requests.generation_limits import MAX_LOGIT_BIAS
from inferflux.v1 import generation_pb2, model_pb2

# Of what is told of a prompt's tokens: it is one message, and NATS bounds those.
MAX_SCORE_BYTES = 512 << 10
_BYTES_OF_TOKEN, _BYTES_OF_SCORE = 4, 16


class TokenizesTexts(Protocol):
    """A tokenizer of texts, such as `inferflux.gateway.tokenizer.tokenizers.Tokenizers`."""

    async def tokenize_bare(
        self, digest: str, texts: Sequence[str], *, field: str
    ) -> list[Sequence[int]]: ...


async def in_tokens(
    params: generation_pb2.GenerationParams, card: model_pb2.ModelCard, tokenizers: TokenizesTexts
) -> generation_pb2.GenerationParams:
    """`params` with token ids in place of words and texts.

    A word is banned as it is spelled at the beginning of a text, and after a blank.

    Raises:
        InvalidArgument: they could not be tokenized, or are too many; or fields contradict each other.
    """
    if params.banned:
        raise InvalidArgument("banned is not set by clients: bad_words are", field="params.banned")
    if params.min_tokens and params.HasField("constraint"):
        message = "min_tokens does not go together with a constraint, which says where an answer ends"
        raise InvalidArgument(message, field="params.min_tokens")
    if not (params.bad_words or params.text_bias):
        return params
    made = generation_pb2.GenerationParams()
    made.CopyFrom(params)
    made.ClearField("bad_words")
    made.ClearField("text_bias")
    words = [spelled for word in params.bad_words for spelled in dict.fromkeys((word, f" {word}"))]
    for ids in await tokenizers.tokenize_bare(card.digest, words, field="params.bad_words") if words else ():
        made.banned.add(ids=ids)
    texts = [each.text for each in params.text_bias]
    found = await tokenizers.tokenize_bare(card.digest, texts, field="params.text_bias") if texts else ()
    for ids, each in zip(found, params.text_bias, strict=bool(texts)):
        for token in ids:
            made.sampling.logit_bias[token] = each.bias
    if len(made.sampling.logit_bias) > MAX_LOGIT_BIAS:
        message = (
            f"the texts have {len(made.sampling.logit_bias)} tokens; at most {MAX_LOGIT_BIAS} are biased"
        )
        raise InvalidArgument(message, field="params.text_bias")
    return made


def check_scores(params: generation_pb2.GenerationParams, *, prompt_tokens: int, has_images: bool) -> None:
    """Check that what is told of a prompt's tokens fits into a message.

    Raises:
        InvalidArgument: it does not, or some of them stand for images.
    """
    if not params.HasField("prompt_logprobs"):
        return
    field = "params.prompt_logprobs"
    if has_images:
        raise InvalidArgument("prompts with images have no log-probabilities", field=field)
    per_token = _BYTES_OF_TOKEN + _BYTES_OF_SCORE * (1 + params.prompt_logprobs)
    if prompt_tokens * per_token > MAX_SCORE_BYTES:
        message = (
            f"prompt_logprobs: a prompt of {prompt_tokens} tokens is too long for {params.prompt_logprobs} "
            f"alternatives each; it may have {MAX_SCORE_BYTES // per_token}"
        )
        raise InvalidArgument(message, field=field)
