"""Flow runs: how they are served, what they show, hold and survive."""
