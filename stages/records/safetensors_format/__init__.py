"""Safetensors, with the rest of a record in its header."""
