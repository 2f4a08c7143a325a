"""Prepare datasets: decode their files once into banks on disk that open fast."""
