"""Structured output: limits, JSON schemas, and the compiling of a constraint to masks of tokens.

`limits` and `schema` are pure and import no library: every receiver of a request may use them. `compiling`
and `vocabulary` import llguidance, `checking` jsonschema_rs: they are for processes that may be killed.
"""
