"""Steps of training: on one device, captured in a CUDA graph, and on several ranks."""
