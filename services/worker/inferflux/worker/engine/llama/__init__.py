"""llama.cpp: models, contexts, batches, devices, and trials of what they can do."""
