"""The command line, and the stages as a DVC pipeline and a Prefect flow; only it imports the two."""
