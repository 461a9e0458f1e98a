"""Land cover segmentation on small tiles, with Lightning."""
