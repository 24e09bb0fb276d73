"""The wiring: the only place that knows Prefect and DVC."""
