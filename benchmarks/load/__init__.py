"""Load on a server: prompts, clients of each protocol, loops that send them, and the bare loop."""
