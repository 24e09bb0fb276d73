"""Burnpack, Burn's own tensor format since 0.19."""
