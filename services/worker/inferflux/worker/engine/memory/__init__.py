"""Memory of sequences, which knows where the computed part of each is: the KV cache, a tier below it, or
nowhere."""
