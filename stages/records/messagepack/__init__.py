"""Burn's formats with names, MessagePack and JSON, in every version of them."""
