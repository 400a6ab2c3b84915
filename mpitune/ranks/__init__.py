"""Ranks of a job: how they start, their messages, their processes. It knows no devices, no trials and no studies."""
