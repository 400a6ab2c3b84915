"""The fits of a search: which candidates are fitted together, where, and what a fit came to."""
