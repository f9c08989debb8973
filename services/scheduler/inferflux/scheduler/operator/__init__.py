"""What operators ask of a scheduler."""
