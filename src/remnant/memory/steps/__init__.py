"""Keeps W·M = W₀·M in every step, through the hooks of optimizers or in a loop of your own."""
