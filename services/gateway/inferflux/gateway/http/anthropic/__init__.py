"""Anthropic's Messages API: bodies to requests, token chunks to messages and their events, errors."""
