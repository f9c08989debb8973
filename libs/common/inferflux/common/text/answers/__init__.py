"""How models spell tool calls and reasoning, and how their text is read. Pure."""
