"""The solver of binary problems along C, from a kernel matrix that is read in place. It knows no samples."""
