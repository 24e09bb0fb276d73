"""Prefect: the flow and its tasks, deployments, artifacts, and the handling of an unreachable server."""
