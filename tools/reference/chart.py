"""Files of the Helm chart that come from the code: the users of NATS and of Valkey."""

from __future__ import annotations

import hashlib

from inferflux.common.servers import nats_users, redis_users

# They stand for what a release fills in, and are names that users may have.
_WORKER, _TENANT, _PASSWORD = "WORKER-ID", "tenant-id", "PASSWORD"


def nats() -> str:
    """Block of each user of NATS as YAML, with @PASSWORD@, @WORKER@ and @TENANT@."""
    users = {
        "gateway": nats_users.gateway(),
        "scheduler": nats_users.scheduler(),
        "operator": nats_users.operator(),
        "sharedWorker": nats_users.worker(),
        "worker": nats_users.worker(_WORKER),
        "tokens": nats_users.observer(_TENANT),
    }
    lines = ["# Written by `make docs` from nats_users.py."]
    for kind, user in users.items():
        config = nats_users.users_config([user], {user.name: f"@{_PASSWORD}@"})
        block = config.partition("users: [\n")[2].rpartition("  ]\n}")[0]
        block = block.replace(_WORKER, "@WORKER@").replace(_TENANT, "@TENANT@")
        lines += [f"{kind}: |2", *(f"  {line}" for line in block.splitlines())]
    return "\n".join(lines) + "\n"


def valkey() -> str:
    """ACL of Valkey, with @NAME@ in place of the digest of a user's password."""
    text = "\n".join(redis_users.acl({name: name for name in redis_users.USERS})) + "\n"
    for name in redis_users.USERS:
        text = text.replace(hashlib.sha256(name.encode()).hexdigest(), f"@{name}@")
    return text
