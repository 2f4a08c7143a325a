"""The Triton kernels, imported only where they are used."""
