"""The commands of `learner` that have a file of their own: what is typed, to what is called."""
