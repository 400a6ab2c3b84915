"""`python -m common.doctor`: what would go wrong in a job, with its fix. Nothing imports it."""
