"""The mathematics of the memory: Gram matrices, bases that grow (Eq. 5, 8, 9) and projections (Eq. 6, 7)."""
