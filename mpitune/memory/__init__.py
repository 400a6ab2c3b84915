"""Memory that the processes of a node share: arrays, and values that are computed once."""
