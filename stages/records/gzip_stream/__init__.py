"""Gzip compression and decompression on several threads."""
