"""Direct calls of PyTorch's autograd engine and fused optimizer kernels, whose names are private."""
