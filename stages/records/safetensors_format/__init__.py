"""Safetensors, with the tree of the record in the header's metadata."""
