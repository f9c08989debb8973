"""Constraints of answers: compiled beside the steps, checked at the end."""
