"""Runs that DVC and git know, beside each other: what they were told, what came of it, and how to show it."""
