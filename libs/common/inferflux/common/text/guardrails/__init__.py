"""Guardrails: which texts are let through. Pure; policy asks it about prompts, gateways about answers."""
