"""Measurements of InferFlux, one command a module; the rooms hold what they share."""
