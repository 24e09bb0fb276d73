"""The five stages, a file each, and the parts they are built from, a folder each."""
