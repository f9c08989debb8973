"""Formats of texts: which ones masks hold, and expressions for those llguidance takes too loosely (pure)."""

from __future__ import annotations

from typing import Final

FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)
"""Formats that masks enforce."""

CHECKED_FORMATS: Final = frozenset(
    {"idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex"}
    | {"relative-json-pointer", "uri-reference", "uri-template"}
)
"""Formats that are only checked when the answer ends."""

_DAY = (
    "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_DAY = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_TIME = (
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = f"(?:{_ATOM}{{1,64}}|{_ATOM}{{1,30}}(?:[.]{_ATOM}{{1,16}}){{1,2}})"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"

EXPRESSIONS: Final = {
    "date": f"^(?:{_DAY}|{_LEAP_DAY})$",
    "time": f"^{_TIME}$",
    "date-time": f"^(?:{_DAY}|{_LEAP_DAY})[tT]{_TIME}$",
    "email": f"^{_LOCAL}@{_LABEL}(?:[.]{_LABEL}){{0,3}}$",
}
"""Every match is valid: a 29th of February in leap years alone, no leap second, no long address."""
