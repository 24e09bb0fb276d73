"""Contracts of all parts: config, plug-in lookup, outputs, events, history, errors; none imports torch."""
