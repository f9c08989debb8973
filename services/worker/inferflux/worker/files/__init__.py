"""What model files say, and what they take, before an engine loads them."""
