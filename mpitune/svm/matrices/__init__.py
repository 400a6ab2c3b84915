"""Which matrices are kept, how they lie in memory, and who shares them."""
