"""Fields of other servers: those under another name here, those without effect, those that are refused.

One table for every body that generates, so that no field which another server knows, and which changes an
answer, is ignored in silence. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from .bodies import SamplingBody
from .served import Served, Table, check_served

_S = TypeVar("_S", bound=SamplingBody)

# Where this API has what another server's field says. The first name that a body has wins, ours before all.
OTHER_NAMES: Mapping[str, str] = {
    # llama.cpp's server.
    "n_predict": "max_tokens",
    "repeat_last_n": "penalty_last_n",
    "typical": "typical_p",
    "grammar": "structured_outputs.grammar",
    "json_schema": "structured_outputs.json",
    # vLLM, before it had `structured_outputs`.
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    # SGLang.
    "regex": "structured_outputs.regex",
    "min_new_tokens": "min_tokens",
    # TGI, Transformers, Mistral, Ollama.
    "max_new_tokens": "max_tokens",
    "stop_sequences": "stop",
    "random_seed": "seed",
    "num_predict": "max_tokens",
}

# They say where or how an answer is made, and not what it is.
WITHOUT_EFFECT = frozenset(
    {
        "cache_prompt",
        "cache_salt",
        "guided_decoding_backend",
        "id_slot",
        "keep_alive",
        "mirostat_eta",
        "mirostat_tau",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
        "request_id",
        "slot_id",
        "spaces_between_special_tokens",
        "timings_per_token",
    }
)

_ORDER = "samplers run in llama.cpp's own order"
_NOT_HERE = "it is not supported"
_LIMIT = "a deadline is a matter of the client: leaving cancels a request"
_IDS = "it is not supported: POST /generate gives token ids"
_SPECIAL = "it is not supported: control tokens are never a part of the text"
_TEMPLATE = "it is not supported: chat templates are set where models are loaded"
_SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]

# By the field's name: the values that leave an answer as it is. Null always does.
REFUSED: Table = {
    "adaptive_target": Served((-1,), _NOT_HERE),
    "add_special_tokens": Served((True, False), _NOT_HERE),
    "allowed_token_ids": Served(([],), "it is not supported: use structured_outputs, or logit_bias"),
    "best_of": Served((1,), "only the value of n is supported"),
    "chat_template": Served(("",), _TEMPLATE),
    "decoder_input_details": Served((False,), "it is not supported: use echo with logprobs"),
    "do_sample": Served((True,), "it is not supported: use temperature 0"),
    "documents": Served(([],), "they are not supported: put them into messages"),
    "early_stopping": Served((False,), _NOT_HERE),
    "ebnf": Served(("",), "it is not supported: use structured_outputs with grammar or lark"),
    "echo": Served((False,), "it is not supported: /v1/completions echoes"),
    "encoder_repetition_penalty": Served((1,), _NOT_HERE),
    "epsilon_cutoff": Served((0,), _NOT_HERE),
    "eta_cutoff": Served((0,), _NOT_HERE),
    "frequency_penalty_range": Served((0,), "it is not supported: use penalty_last_n"),
    "grammar_lazy": Served((False,), _NOT_HERE),
    "grammar_triggers": Served(([],), _NOT_HERE),
    "guidance_scale": Served((1,), _NOT_HERE),
    "guided_whitespace_pattern": Served(("",), _NOT_HERE),
    "include_stop_str_in_output": Served((False,), "the text ends before a stop string"),
    "kv_transfer_params": Served(({},), _NOT_HERE),
    "length_penalty": Served((1,), "there is no beam search"),
    "logits_processors": Served(([],), _NOT_HERE),
    "lora": Served(([],), "it is not supported: use adapter"),
    "lora_path": Served(("",), "it is not supported: use adapter"),
    "min_keep": Served((0, 1), _NOT_HERE),
    "mirostat": Served((0,), _NOT_HERE),
    "mirostat_mode": Served((0,), _NOT_HERE),
    "mm_processor_kwargs": Served(({},), _NOT_HERE),
    "n_indent": Served((0,), _NOT_HERE),
    "negative_prompt": Served(("",), _NOT_HERE),
    "no_repeat_ngram_size": Served((0,), "it is not supported: use dry_multiplier"),
    "no_stop_trim": Served((False,), "the text ends before a stop string"),
    "num_beams": Served((1,), "there is no beam search"),
    "num_ctx": Served((), "it is not supported: a model's context is set where it is loaded"),
    "options": Served(({},), "it is not supported: its fields are fields of the body here"),
    "penalize_nl": Served((False,), "line feeds are penalized as other tokens: use logit_bias"),
    "penalty_alpha": Served((0,), _NOT_HERE),
    "penalty_prompt": Served(("",), _NOT_HERE),
    "post_sampling_probs": Served((False,), "log-probabilities are those before any sampling parameter"),
    "preserved_tokens": Served(([],), _SPECIAL),
    "prompt_logprobs": Served((), "it is not supported: /v1/completions has echo with logprobs"),
    "raw": Served((False,), "it is not supported: /v1/completions has no template"),
    "repetition_penalty_range": Served((0,), "it is not supported: use penalty_last_n"),
    "response_fields": Served(([],), _NOT_HERE),
    "return_hidden_states": Served((False,), _NOT_HERE),
    "return_progress": Served((False,), _NOT_HERE),
    "return_token_ids": Served((False,), _IDS),
    "return_tokens": Served((False,), _IDS),
    "return_tokens_as_token_ids": Served((False,), _IDS),
    "safe_prompt": Served((False,), "it is not supported: guardrails are set by administrators"),
    "samplers": Served((_SAMPLERS, [], ""), _ORDER),
    "sampler_seq": Served(("",), _ORDER),
    "skip_special_tokens": Served((True,), _SPECIAL),
    "smoothing_factor": Served((0,), _NOT_HERE),
    "structural_tag": Served((), "it is not supported: use tools, or structured_outputs"),
    "system_prompt": Served(("",), "it is not supported: use a message of the role system"),
    "t_max_predict_ms": Served((0, -1), _LIMIT),
    "t_max_prompt_ms": Served((0, -1), _LIMIT),
    "temperature_last": Served((True,), _ORDER),
    "template": Served(("",), _TEMPLATE),
    "tfs": Served((1,), _NOT_HERE),
    "tfs_z": Served((1,), _NOT_HERE),
    "top_a": Served((0,), _NOT_HERE),
    "top_n_tokens": Served((0,), "it is not supported: use logprobs"),
    "transforms": Served(([],), "nothing is left out of a conversation"),
    "truncate": Served((0,), "it is not supported: what is too long is refused"),
    "truncate_prompt_tokens": Served((), "it is not supported: what is too long is refused"),
    "truncation_length": Served((), "it is not supported: what is too long is refused"),
    "use_beam_search": Served((False,), "there is no beam search"),
    "vllm_xargs": Served(({},), _NOT_HERE),
    "watermark": Served((False,), _NOT_HERE),
}


def settled(body: _S, data: bytes) -> _S:
    """The body with what it says under other servers' names.

    Args:
        data: that it was read from.

    Raises:
        InvalidArgument: it has a field that another server knows, and that is not served.
        ValidationError: a field under another name has a wrong type.
    """
    given = body.model_extra
    if not given:
        return body
    check_served(body, {name: served for name, served in REFUSED.items() if name in given})
    renamed = _renamed(body, given)
    if not renamed:
        return body
    return type(body).model_validate_json(to_json(from_json(data) | renamed))


def _renamed(body: SamplingBody, given: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields, where another server's name says what they are."""
    made: dict[str, Any] = {}
    for name, ours in OTHER_NAMES.items():
        value = given.get(name)
        field, _, kind = ours.partition(".")
        if value in (None, "") or field in made or _has(body, field):
            continue
        made[field] = {kind: value} if kind else value
    if (form := given.get("format")) not in (None, "") and not _has(body, "structured_outputs"):
        made.setdefault("structured_outputs", {"json_object": True} if form == "json" else {"json": form})
    n_probs = given.get("n_probs")
    if n_probs and not _has(body, "logprobs"):
        is_chat = "top_logprobs" in type(body).model_fields and "messages" in type(body).model_fields
        made |= {"logprobs": True, "top_logprobs": n_probs} if is_chat else {"logprobs": n_probs}
    return made


def _has(body: SamplingBody, field: str) -> bool:
    return field not in type(body).model_fields or getattr(body, field) is not None


def names_used(body: SamplingBody) -> Mapping[str, str]:
    """Other servers' names by the field of ours that they stood for, for errors."""
    given = body.model_extra or {}
    used: dict[str, str] = {}
    for name, ours in OTHER_NAMES.items():
        if given.get(name) not in (None, ""):
            used.setdefault(ours, name)
    if given.get("format") not in (None, ""):
        used.setdefault("structured_outputs.json", "format")
    if given.get("n_probs"):
        used |= {"logprobs": "n_probs", "top_logprobs": "n_probs"}
    if body.repetition_penalty is not None:
        used["repeat_penalty"] = "repetition_penalty"
    return used
