"""A torch optimizer as Burn's record of it, and back."""
