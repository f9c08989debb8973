"""Settings of the policy service: `INFERFLUX_POLICY_...`, beside what every service shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import AfterValidator, SecretStr
from pydantic_settings import SettingsConfigDict

from inferflux.common.calls.audit.settings import AuditSettings
from inferflux.common.contract.callers.api_key import is_well_formed
from inferflux.common.contract.requests.priority import HIGHEST, LOWEST
from inferflux.common.process.setting_kinds import ListenAddress, OptionalPath, SubjectToken, listed
from inferflux.common.process.settings import setting

from .decide.decisions.settings import DecisionSettings
from .decide.keys import OWN_TENANT
from .decide.oidc.issuer import Issuers
from .decide.oidc.key_cache import KeyTimes
from .storage.settings import StorageSettings

_KEY_TIMES = KeyTimes()


def _well_formed(secret: SecretStr) -> SecretStr:
    if secret.get_secret_value() and not is_well_formed(secret.get_secret_value()):
        raise ValueError("an API key is ifx_ and 43 URL-safe characters")
    return secret


class PolicySettings(AuditSettings, DecisionSettings, StorageSettings):
    """Settings of one policy process."""

    model_config = SettingsConfigDict(env_prefix="INFERFLUX_POLICY_")

    listen: ListenAddress = setting(
        "127.0.0.1:50052",
        "where gateways and administrators call; port 0 takes a free one",
        ordinary=True,
    )
    bootstrap_key: Annotated[SecretStr, AfterValidator(_well_formed)] = setting(
        SecretStr(""),
        "an admin key of the tenant `default` to write at the start; empty: "
        "[one is generated](policy.md#the-first-key) if the store has none",
        ordinary=True,
    )
    first_key_path: OptionalPath = setting(
        None,
        "the file that a generated [first key](policy.md#the-first-key) is written to, for its owner alone; "
        "unset: it is shown once on stderr",
    )
    service_names: str = setting(
        "gateway",
        "with `INFERFLUX_TLS_CLIENT_CA`: the common names of certificates, comma-separated, whose holders "
        "[are services](policy.md#services) without a service key; empty: none",
    )
    store_timeout_s: float = setting(
        0.5, "longest wait for Redis or another storage before a call is refused", gt=0, le=10
    )
    settled_memory_s: int = setting(
        3600,
        "how long a job is remembered after it was last settled, so that nothing of it counts twice: longer "
        "than requests may wait to be resumed",
        ge=1,
        le=86400,
    )
    # Below what the scheduler calls urgent (INFERFLUX_FAIRNESS_HIGH_PRI), so that urgency is granted and not
    # taken.
    default_max_priority: int = setting(
        4,
        "the most urgent priority of keys without a [ceiling](policy.md#api-keys) of their own; "
        "higher ones are capped",
        ge=LOWEST,
        le=HIGHEST,
    )
    cache_scope: SubjectToken = setting(
        OWN_TENANT,
        "whose cached prefixes requests share, for keys that do not say it: `tenant`, those of "
        "their own tenant alone; any other name, those of all keys with that name: see "
        "[cache scope](policy.md#cache-scope)",
    )

    oidc_issuers: Issuers = setting(
        (),
        "[issuers of tokens](policy.md#tokens-of-openid-connect) that are taken beside API keys: a JSON list "
        "of objects; `INFERFLUX_POLICY_OIDC_ISSUERS_FILE` names a file with it. Empty: none",
        ordinary=True,
    )
    oidc_keys_refresh_s: float = setting(
        _KEY_TIMES.refresh_s, "how often issuers are asked for their keys", ge=1, le=86_400
    )
    oidc_keys_stale_s: float = setting(
        _KEY_TIMES.stale_s,
        "how long keys of an issuer hold that does not answer; then its tokens are refused",
        ge=1,
        le=2_592_000,
    )

    @property
    def key_times(self) -> KeyTimes:
        """When issuers are asked for their keys."""
        return replace(_KEY_TIMES, refresh_s=self.oidc_keys_refresh_s, stale_s=self.oidc_keys_stale_s)

    @property
    def service_certificates(self) -> list[str]:
        """Common names of certificates that prove a service: none without mutual TLS."""
        return listed(self.service_names) if self.tls_client_ca is not None else []
