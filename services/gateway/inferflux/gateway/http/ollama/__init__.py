"""Ollama's API in ours: bodies to requests, token chunks to its lines, models as it lists them."""
