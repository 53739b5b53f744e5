"""Images: encoded bytes in a store, read by index; what becomes of them in a batch is in `data/augmentations`."""
