"""Small things that every room may use: devices, files, memory, precision, seeds, spelling, typed values, warping."""
