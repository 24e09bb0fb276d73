"""MessagePack with names, Burn's default format."""
