"""Reads an old task through its own memory, and recognises the task of an example."""
