"""Kernels: scalar products, distances and kernel functions between samples. It knows no solver."""
