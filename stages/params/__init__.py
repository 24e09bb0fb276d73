"""Arguments of the stages with many params: their sections of params.yaml, their paths and their context."""
