"""The commands of `learner`, one module for each command or group of commands."""
