"""Resume: checkpoints at and within epochs, and runs that start from the weights or the state of another."""
