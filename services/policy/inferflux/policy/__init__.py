"""Policy: holds keys, limits and guardrails, and decides what a caller may do."""
