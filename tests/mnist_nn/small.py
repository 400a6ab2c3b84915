"""A search of networks that takes seconds."""

from mnist_nn.experiment import Bagging

FULL = Bagging(
    2, 9, dataset="digits", train_size=150, test_size=40, folds=2, max_conv_layer=4, max_hidden_layer=16, epochs=6
)
