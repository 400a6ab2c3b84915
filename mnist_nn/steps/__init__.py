"""The computation of a training step. It knows a network and a batch, and nothing of searches."""
