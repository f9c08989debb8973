"""Texts of prompts and answers: chat templates, answer formats, constraints, guardrails (pure)."""
