"""llama.cpp through the low-level ctypes bindings of llama-cpp-python: the one place that imports them."""
