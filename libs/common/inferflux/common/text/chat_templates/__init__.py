"""Chat templates as models carry them: rendered in a sandbox, and what they do with tools."""
