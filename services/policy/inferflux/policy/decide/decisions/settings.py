"""Settings of decision backends."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, SecretStr, model_validator

from inferflux.common.http.http_client import check_url
from inferflux.common.http.http_settings import HttpClientSettings
from inferflux.common.process.setting_kinds import OptionalPath, listed
from inferflux.common.process.settings import setting

BUILTIN = "builtin"
OPA = "opa"
CEDAR = "cedar"
NAMES = (BUILTIN, OPA, CEDAR)

DECISIONS = "INFERFLUX_POLICY_DECISIONS"
FAIL_OPEN = "INFERFLUX_POLICY_DECISIONS_FAIL_OPEN"
OPA_URL = "INFERFLUX_POLICY_OPA_URL"
CEDAR_POLICIES = "INFERFLUX_POLICY_CEDAR_POLICIES"
CEDAR_ENTITIES = "INFERFLUX_POLICY_CEDAR_ENTITIES"


def _check_order(value: str) -> str:
    names = listed(value)
    if unknown := [name for name in names if name not in NAMES]:
        raise ValueError(f"there is no {unknown[0]!r}: use {', '.join(NAMES)}")
    if len(set(names)) != len(names):
        raise ValueError("must name each backend once")
    if BUILTIN not in names:
        raise ValueError(f"must name {BUILTIN!r} too: scopes and models of keys always hold")
    return value


def _check_opa_url(value: str) -> str:
    if value:
        check_url(value)
        if "/v1/data/" not in value:
            raise ValueError("must name a document, as http://127.0.0.1:8181/v1/data/inferflux/decision")
    return value


class DecisionSettings(HttpClientSettings):
    """Settings of [decision backends](policy.md#decision-backends)."""

    decisions: Annotated[str, AfterValidator(_check_order)] = setting(
        BUILTIN,
        "what [decides about calls](policy.md#decision-backends), comma-separated, in this order: `builtin`, "
        "`opa`, `cedar`. All must permit",
        variable=DECISIONS,
        ordinary=True,
    )
    decisions_fail_open: str = setting(
        "",
        "backends without which calls pass when they do not decide, comma-separated: `opa`, `cedar`. Empty: "
        "such calls are refused",
        variable=FAIL_OPEN,
    )
    decision_timeout_s: float = setting(
        0.25,
        "longest wait for one decision of a backend",
        variable="INFERFLUX_POLICY_DECISION_TIMEOUT_S",
        gt=0,
        le=10,
    )
    decision_cache_s: float = setting(
        1.0,
        "how long a backend's decision on equal facts is used again; 0: not at all",
        variable="INFERFLUX_POLICY_DECISION_CACHE_S",
        ge=0,
        le=60,
    )
    opa_url: Annotated[str, AfterValidator(_check_opa_url)] = setting(
        "",
        "the document that OPA is asked for, such as `http://127.0.0.1:8181/v1/data/inferflux/decision`. An "
        "address that is not public has to be in `INFERFLUX_HTTP_ALLOWED_NETWORKS`",
        variable=OPA_URL,
    )
    opa_token: SecretStr = setting(
        SecretStr(""),
        "sent to OPA as `Authorization: Bearer`; empty sends none",
        variable="INFERFLUX_POLICY_OPA_TOKEN",
    )
    opa_sees_text: bool = setting(
        False,
        "whether OPA is given the texts of prompts",
        variable="INFERFLUX_POLICY_OPA_SEES_TEXT",
    )
    cedar_policies: OptionalPath = setting(
        None,
        "Cedar's policies: a file, or a folder whose `*.cedar` are taken together; "
        "[read again](policy.md#cedar) when they change",
        variable=CEDAR_POLICIES,
    )
    cedar_entities: OptionalPath = setting(
        None,
        "Cedar's entities beside those that [InferFlux makes](policy.md#cedar): a file with JSON",
        variable=CEDAR_ENTITIES,
    )

    @property
    def decision_order(self) -> list[str]:
        return listed(self.decisions)

    @model_validator(mode="after")
    def _backends_are_whole(self) -> Self:
        order = self.decision_order
        if OPA in order and not self.opa_url:
            raise ValueError(f"{DECISIONS} names opa: {OPA_URL} must be set")
        if CEDAR in order and self.cedar_policies is None:
            raise ValueError(f"{DECISIONS} names cedar: {CEDAR_POLICIES} must be set")
        for name in listed(self.decisions_fail_open):
            if name not in order or name == BUILTIN:
                raise ValueError(f"{FAIL_OPEN} names {name!r}, which is no backend of {DECISIONS}")
        return self
