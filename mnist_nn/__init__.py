"""Random search and bagging of small convolutional networks on images of digits."""
