"""Datasets decoded once, from whatever form people have them in, into banks that open at once."""
