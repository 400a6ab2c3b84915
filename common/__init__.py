"""What the programs mnist_svm and mnist_nn share: files of images, and settings of studies on images."""
