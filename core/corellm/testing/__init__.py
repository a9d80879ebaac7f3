"""What plugin authors test with: tiny checkpoints and the parts to make them."""
