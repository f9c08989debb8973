"""Finds the model that `inferctl up` serves, and fetches or pulls it where it is not here."""
