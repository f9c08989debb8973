"""What administrators do with keys, roles, limits and guardrails."""
