"""What `learner doctor` looks at."""
