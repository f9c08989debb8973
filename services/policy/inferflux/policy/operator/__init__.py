"""Administration of keys, roles, limits and guardrails."""
