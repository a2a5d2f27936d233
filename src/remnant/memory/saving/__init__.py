"""A memory as a state dict, as a file and as a copy, and the checks when it is loaded."""
