"""What an answer has to look like: limits, JSON schemas, and how a constraint becomes masks of tokens.

`limits` and `schema` are pure and import no library: every receiver of a request may use them. `compiling`
and `vocabulary` import llguidance, `checking` jsonschema_rs: they are for processes that may be killed.
"""
