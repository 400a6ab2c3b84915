"""Charts for reports and figures of matplotlib, and the numbers in them."""
