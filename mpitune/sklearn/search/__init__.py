"""The searches: scikit-learn's classes, whose tasks become the trials of a study."""
