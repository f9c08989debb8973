"""Where policy keeps what administrators set: keys, roles, limits and guardrails."""
