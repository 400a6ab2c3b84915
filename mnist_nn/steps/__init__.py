"""The ways to compute a training step. They know a network and a batch, and nothing of searches."""

STEPS = ("auto", "autograd", "manual")  # what --step takes; "auto" is "manual"
