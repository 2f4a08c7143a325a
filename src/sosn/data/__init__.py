"""Image banks, episode sampling, augmentation, and reading of images."""
