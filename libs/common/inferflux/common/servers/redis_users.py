"""The users of Redis or Valkey: which keys each reads and writes, and no others. Pure.

One user for each kind of process that uses it, as lines of its ACL. Without a password, a
client may do nothing. No user may change the server itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

POLICY = "policy"
GATEWAY = "gateway"
SCHEDULER = "scheduler"
WORKER = "worker"
OPERATOR = "operator"
# Asks whether the server is ready, and nothing else.
HEALTH = "health"

# No command that names keys of others, or whose scripts run for others too. Whether a key may be read is not
# asked of these.
_OF_ALL_KEYS = "-scan -randomkey -dbsize -memory|stats -memory|doctor -memory|purge -client|tracking -pubsub"
_OF_ALL_SCRIPTS = "-function -fcall -fcall_ro -script|flush -script|kill -script|debug"
_COMMANDS = f"+@all -@admin -@dangerous {_OF_ALL_KEYS} {_OF_ALL_SCRIPTS}"
_SALT = "inferflux:{prefixes}:salt"

# A script's keys count as written to, whatever it does. So the scheduler, which reads the prefix index alone,
# is kept from commands that write.
_RULES: Mapping[str, str] = {
    POLICY: f"resetchannels &inferflux:* ~inferflux:* {_COMMANDS}",
    # It looks for answers that are to be cleared among all names.
    GATEWAY: f"resetchannels ~inferflux:{{answers}}:* ~{_SALT} {_COMMANDS} +scan",
    SCHEDULER: f"resetchannels ~inferflux:{{prefixes}}:* {_COMMANDS} -@write (~{_SALT} +set)",
    WORKER: f"resetchannels ~inferflux:{{prefixes}}:* {_COMMANDS}",
    HEALTH: "resetchannels -@all +ping",
    OPERATOR: "allchannels allkeys allcommands",
}
USERS = tuple(_RULES)


def acl(passwords: Mapping[str, str]) -> list[str]:
    """A line of configuration for each user, with the digest of its password; all others are refused."""
    lines = [f"user {name} on #{_digest(passwords[name])} {rule}" for name, rule in _RULES.items()]
    return ["user default off", *lines]


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()
