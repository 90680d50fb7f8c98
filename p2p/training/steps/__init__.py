"""The steps of `DataParallel`: from the first gradient of a backward pass to the optimizer's update."""
