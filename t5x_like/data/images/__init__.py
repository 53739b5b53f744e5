"""Images: encoded bytes in a store, read by index; `data/augmentations` changes them in a batch."""
