"""Augmentation: random changes of the inputs, and datasets that change or select samples."""
