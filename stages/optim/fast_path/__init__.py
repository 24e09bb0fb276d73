"""Direct calls of PyTorch's fused optimizer kernels, and the check of the private names that they need."""
