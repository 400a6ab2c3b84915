"""What still counts of an earlier study: its code, its points, its results."""
