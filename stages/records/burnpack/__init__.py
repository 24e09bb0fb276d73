"""Formats that keep tensors under dotted names: burnpack and safetensors."""
