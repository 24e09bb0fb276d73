"""JSON as serde_json writes it."""
