"""Multi-scale vision: MViT's pooling attention, and CoAtNet's convolutions below attention.

`pooling_encoder` and `first_pooling_encoder` are the second and the first MViT, made of the blocks
of `pooling`; `hybrid_encoder` is CoAtNet, made of the blocks of `mbconv`. BASIC is a CoAtNet with a
text encoder.
"""
