"""Which scheduler leads which partition, and what a new leader takes over."""
