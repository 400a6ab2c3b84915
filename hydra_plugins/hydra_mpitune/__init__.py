"""Hydra finds its plugins here: hydra/sweeper=mpitune."""
