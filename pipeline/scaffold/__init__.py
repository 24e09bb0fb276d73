"""New projects for a user's own model and data."""
