"""Answer formats of models (tool calls and reasoning), and their parsers. Pure."""
