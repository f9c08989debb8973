"""OpenAI's responses API, without state."""
