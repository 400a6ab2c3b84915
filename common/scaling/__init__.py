"""`python -m common.scaling`: times of one study on several layouts. Nothing imports it."""
