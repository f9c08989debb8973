"""Guardrails: sets of rules for the texts of tenants and models, kept in Redis, and the check of prompts."""
