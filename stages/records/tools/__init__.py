"""What is in a file of state, whether it is whole, how two differ, and other forms of it."""
