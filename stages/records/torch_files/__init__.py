"""Reader of the files that `torch.save` writes, without unpickling them."""
