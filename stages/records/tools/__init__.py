"""Tools for record files: listing, verification, comparison and conversion (``learner records``)."""
