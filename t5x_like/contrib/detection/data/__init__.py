"""Boxes of images, and their augmentation."""
