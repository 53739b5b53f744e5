"""Products of 8-bit factors in training, one file each: `config.model.design.quantization`.

A file's `make` takes the arguments that recipes give. It returns a function that takes a block, and
returns it with projections that multiply in this way. Parameters, optimizer and checkpoints stay
float32 and keep their names, so a run may switch at any step. Embeddings, attention's own products,
routers, heads and output logits stay in the compute dtype.
"""
