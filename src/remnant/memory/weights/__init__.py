"""What the memory protects: the weights of a model, where they are used, and how several processes share them."""
