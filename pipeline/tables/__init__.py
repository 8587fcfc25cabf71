"""What `shapecast tables` does."""
