"""One gzip member: written in chunks on several threads, read with a bound on what it may become."""
