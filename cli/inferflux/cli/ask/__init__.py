"""Commands that ask for answers, and those of models."""
