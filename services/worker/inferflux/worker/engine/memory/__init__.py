"""Where the computed part of each sequence is: the KV cache, a tier below it, or nowhere."""
