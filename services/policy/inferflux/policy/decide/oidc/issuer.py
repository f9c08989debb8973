"""An issuer as it is set: whose tokens are taken, and what their claims mean. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from inferflux.common.contract.callers.scopes import Scope
from inferflux.common.contract.errors import InvalidArgument
from inferflux.common.contract.models.model_names import parse_patterns
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST
from inferflux.common.contract.requests.worker_pools import parse_pools
from inferflux.common.http.http_client import check_url
from inferflux.policy.decide.keys import parse_cache_scope, parse_tenant
from inferflux.policy.decide.roles import parse_role_names

_T = TypeVar("_T")


def _parsed(parse: Callable[[_T], object]) -> AfterValidator:
    """Checks a value; an empty one passes."""

    def check(value: _T) -> _T:
        try:
            if value:
                parse(value)
        except InvalidArgument as error:
            raise ValueError(error.message) from None
        return value

    return AfterValidator(check)


Url = Annotated[str, _parsed(check_url)]
Tenant = Annotated[str, _parsed(parse_tenant)]
Roles = Annotated[tuple[str, ...], _parsed(parse_role_names)]
Text = Annotated[str, Field(min_length=1)]
Algorithm = Literal["RS256", "ES256"]


class Issuer(BaseModel):
    """An issuer whose tokens are taken. `make docs` writes the descriptions into docs/policy.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: Annotated[Url, Field(min_length=1, description="its URL, exactly as the claim `iss` has it")]
    audiences: tuple[Text, ...] = Field(
        min_length=1, description="a token's claim `aud` has to name one of these"
    )
    keys_at: Literal["discovery", "well-known"] = Field(
        "discovery",
        description="how its keys are found: `openid-configuration`, below `ISSUER/.well-known/`, says "
        "where they are, or they are in `jwks.json` there",
    )
    jwks_url: Url = Field("", description="URL of its keys, in place of `keys_at`")
    algorithms: tuple[Algorithm, ...] = Field(
        ("RS256", "ES256"), min_length=1, description="signatures that are taken"
    )
    leeway_s: float = Field(30.0, ge=0, le=300, description="how far its clock and policy's may differ")
    max_age_s: float = Field(
        86_400.0, gt=0, le=31_536_000, description="a token that was issued longer ago is refused"
    )
    tenant: Tenant = Field("", description="the tenant of all its tokens; either this or `tenant_claim`")
    tenant_claim: str = Field("", description="the claim with the tenant")
    tenants: Mapping[str, Annotated[Tenant, Field(min_length=1)]] = Field(
        {},
        description="the tenant for each value of `tenant_claim`; other values are refused. "
        "Empty: the value is the tenant",
    )
    roles_claim: str = Field("", description="the claim with roles or groups")
    roles: Mapping[str, Roles] = Field(
        {},
        description="the [roles](#scopes-and-roles) for each value of `roles_claim`; other values give none",
    )
    default_roles: Roles = Field((), description="roles of every token")
    scopes_claim: str = Field("", description="the claim with scopes, such as `scope`")
    scope_prefix: str = Field("", description="what InferFlux's scopes begin with there; others give nothing")
    allowed_scopes: tuple[Scope, ...] = Field(
        (Scope.INFERENCE, Scope.MODELS),
        description="the most that a token gets, whatever claims and roles give",
    )
    models: Annotated[tuple[str, ...], _parsed(parse_patterns)] = Field(
        (), description="models that its tokens are held to; empty: every model"
    )
    worker_pools: Annotated[tuple[str, ...], _parsed(parse_pools)] = Field(
        (), description="[pools](#worker-pools) that its tokens are held to; empty: every worker"
    )
    max_priority: int | None = Field(
        None, ge=LOWEST, le=HIGHEST, description="ceiling for priorities; unset: as of keys without one"
    )
    cache_scope: Annotated[str, _parsed(parse_cache_scope)] = Field(
        "", description="[cache scope](#cache-scope); empty: as of keys without one"
    )
    deterministic: bool = Field(
        False,
        description="whether requests with its tokens are [deterministic](caching.md#the-same-answer-again)",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if bool(self.tenant) == bool(self.tenant_claim):
            raise ValueError("either tenant or tenant_claim must be set")
        if self.tenants and not self.tenant_claim:
            raise ValueError("tenants needs tenant_claim")
        if bool(self.roles) != bool(self.roles_claim):
            raise ValueError("roles and roles_claim go together")
        return self

    def well_known(self, name: str) -> str:
        """The URL of a document that the issuer's own URL leads to."""
        return f"{self.issuer.rstrip('/')}/.well-known/{name}"


Issuers = Annotated[
    tuple[Issuer, ...],
    BeforeValidator(lambda value: () if value == "" else value),
    AfterValidator(lambda value: _each_once(value)),
]
"""Issuers as a setting has them; an empty variable has none."""


def _each_once(issuers: tuple[Issuer, ...]) -> tuple[Issuer, ...]:
    if len({each.issuer for each in issuers}) != len(issuers):
        raise ValueError("an issuer is there twice")
    return issuers
