"""Datasets: where they come from, and how they are downloaded, prepared and stored."""
