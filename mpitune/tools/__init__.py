"""The tools of `python -m mpitune TOOL`: one file each, with a function `main`. Nothing else imports them."""
