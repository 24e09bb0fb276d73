"""Comparison of runs that git and DVC track: their params, metrics and curves as tables, a page and plots."""
