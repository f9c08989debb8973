"""The settings class of every service, and the environment variables it reads."""

from __future__ import annotations

from pydantic.fields import FieldInfo

from inferflux.common.settings import ServiceSettings
from inferflux.gateway.settings import GatewaySettings
from inferflux.policy.settings import PolicySettings
from inferflux.scheduler.settings import SchedulerSettings
from inferflux.worker.settings import WorkerSettings

SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "policy": PolicySettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
}


def variables(cls: type[ServiceSettings]) -> dict[str, FieldInfo]:
    """Every environment variable of a settings class, with its field."""
    prefix = cls.model_config.get("env_prefix", "")
    return {
        f.validation_alias if isinstance(f.validation_alias, str) else f"{prefix}{name}".upper(): f
        for name, f in cls.model_fields.items()
    }
