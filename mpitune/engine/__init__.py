"""Runs a study: coordinator, agents, workers. It knows experiments only as the abstract class, and no user of it."""
