"""One TOML file per benchmark: its settings per method, and the paper's numbers beside them."""
