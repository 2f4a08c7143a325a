"""The figures of each page of the documentation, a module a page."""
