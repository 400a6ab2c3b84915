"""Follows a study while it runs, and exports it."""
