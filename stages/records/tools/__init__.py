"""Tools for record files: listing, comparison and conversion (``learner records``)."""
