"""The five stages, one file each, and the parts that they are built from, one folder each."""
