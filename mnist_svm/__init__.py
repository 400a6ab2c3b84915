"""Grid search of a support vector machine with a radial basis function kernel on images of digits."""
