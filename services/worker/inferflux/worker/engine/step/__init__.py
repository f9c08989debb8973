"""The engine's step: take up what arrived, decode, sample, report."""
