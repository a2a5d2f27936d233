"""GPM in other training loops. Import the one you need: `remnant.integrations.lightning`, `.transformers` or `.avalanche`."""
