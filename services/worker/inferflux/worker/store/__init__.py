"""The store of models: a folder of what was pulled, and how it comes there."""
