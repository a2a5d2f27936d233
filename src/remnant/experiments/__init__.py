"""Benchmarks and methods brought together: settings, the runner, and the folder a run leaves behind."""
