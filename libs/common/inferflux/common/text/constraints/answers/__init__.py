"""The grammar of an answer with thoughts, content and calls, in the way of the model's family (pure)."""
