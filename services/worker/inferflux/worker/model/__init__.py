"""One loaded model: its requests, its engine, and its token streams."""
