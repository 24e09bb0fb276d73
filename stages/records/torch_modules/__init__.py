"""A torch module as the record of the Burn module with the same fields, and back."""
