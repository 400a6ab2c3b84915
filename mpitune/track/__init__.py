"""Follows a study while it runs, in other tools."""
