"""The grammar of an answer with thoughts, content and calls, in the format of the model's family (pure)."""
