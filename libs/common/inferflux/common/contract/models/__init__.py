"""Names and sources of models, and what an operator may ask of them (pure)."""
