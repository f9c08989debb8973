"""The scheduler's real core against modelled workers, in simulated time."""
