"""How many edits turn one sequence into another, for a whole batch at once."""

import torch
from torch import Tensor


def edit_distances(references: Tensor, predictions: Tensor, pad_token: int | None) -> Tensor:
    """Of each row of *predictions* (B, P) from its row of *references* (B, R): Levenshtein's distance, (B,).

    A row ends before its first *pad_token*. All rows advance together on their device, without a wait: one
    line of the table for each place of the references.
    """
    reference_lengths, prediction_lengths = lengths(references, pad_token), lengths(predictions, pad_token)
    places = torch.arange(predictions.shape[1] + 1, device=predictions.device)
    line = places.expand(len(predictions), -1)
    for place in range(references.shape[1]):
        changed = line[:, :-1] + (predictions != references[:, place : place + 1])
        kept = torch.cat([line[:, :1] + 1, torch.minimum(changed, line[:, 1:] + 1)], dim=1)
        inserted = (kept - places).cummin(dim=1).values + places
        line = torch.where((place < reference_lengths).unsqueeze(1), inserted, line)
    return line.gather(1, prediction_lengths.unsqueeze(1)).squeeze(1)


def lengths(tokens: Tensor, pad_token: int | None) -> Tensor:
    """How many tokens of each row (B, T) stand before the first *pad_token*, (B,)."""
    if pad_token is None:
        return torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
    return (tokens != pad_token).long().cumprod(dim=1).sum(dim=1)
