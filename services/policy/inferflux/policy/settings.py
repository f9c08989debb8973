"""What can be set about the policy service: `INFERFLUX_POLICY_...`, beside what every service shares."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from inferflux.common.api_key import is_well_formed
from inferflux.common.priority import HIGHEST, LOWEST
from inferflux.common.settings import EXPERT, ServiceSettings, SubjectToken

from .keys import OWN_TENANT


def _well_formed(secret: SecretStr) -> SecretStr:
    if secret.get_secret_value() and not is_well_formed(secret.get_secret_value()):
        raise ValueError("an API key is ifx_ and 43 URL-safe characters")
    return secret


class PolicySettings(ServiceSettings):
    """Settings of one policy process."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_POLICY_")

    listen: str = Field(
        default="127.0.0.1:50052",
        description="where gateways and administrators call; port 0 takes a free one",
    )
    bootstrap_key: Annotated[SecretStr, AfterValidator(_well_formed)] = Field(
        default=SecretStr(""),
        description="an admin key of the tenant `default` to write at the start; empty: "
        "[one is generated](policy.md#the-first-key) if the store has none",
    )
    store_timeout_s: float = Field(
        default=0.5,
        gt=0,
        le=10,
        description="longest wait for Redis before a call is refused",
        json_schema_extra=EXPERT,
    )
    store_check_interval_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="how often Redis is checked for readiness",
        json_schema_extra=EXPERT,
    )
    settled_memory_s: int = Field(
        default=3600,
        ge=1,
        le=86400,
        description="how long a job is remembered after it was last settled, "
        "so that nothing of it counts twice",
        json_schema_extra=EXPERT,
    )
    # Below what the scheduler calls urgent (INFERFLUX_FAIRNESS_HIGH_PRI), so that urgency is granted and not
    # taken.
    default_max_priority: int = Field(
        default=4,
        ge=LOWEST,
        le=HIGHEST,
        description="the most urgent priority of keys without a [ceiling](policy.md#api-keys) of their own; "
        "higher ones are capped",
    )
    cache_scope: SubjectToken = Field(
        default=OWN_TENANT,
        description="whose cached prefixes requests share, for keys that do not say it: `tenant`, those of "
        "their own tenant alone; any other name, those of all keys with that name: see "
        "[cache scope](policy.md#cache-scope)",
    )
