"""Images in banks, episodes drawn from them, and the one way a picture becomes a tensor."""
