"""Learn one task after another without forgetting: Gradient Projection Memory for any PyTorch model."""
