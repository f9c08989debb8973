"""A process for each model that renders its template and turns text into tokens."""
