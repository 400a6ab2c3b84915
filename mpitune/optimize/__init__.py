"""Searches of any objective. `spaces` is what a search looks through, `strategies` how; neither needs the engine."""
