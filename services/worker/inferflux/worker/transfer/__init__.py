"""KV state that goes from one worker to another: wishes, packets, and what carries them."""
