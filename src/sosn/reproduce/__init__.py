"""The paper's experiments, run whole, with its figures beside ours."""
