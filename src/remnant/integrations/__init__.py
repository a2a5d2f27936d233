"""Callbacks for other training loops. Import the one you need: `remnant.integrations.lightning` or `.transformers`."""
