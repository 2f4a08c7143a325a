"""A few pictures of each class in, answers out."""
