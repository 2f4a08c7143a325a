"""Pages of the documentation, each with what fills in its figures from files that commands wrote."""
