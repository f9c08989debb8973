"""OpenAI's shapes: what its requests mean for us, and our chunks in its words. All of it is pure."""
