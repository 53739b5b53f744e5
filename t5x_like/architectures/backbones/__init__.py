"""Networks that turn images into feature maps. One file each, named after the network.

A file's `make` takes the arguments that recipes give, `rngs` and the `channels` of the images. A
backbone is called as `backbone(image_BYXC, key) -> [B, Y', X', width]`, where `width` and `stride`,
pixels from one cell to the next, are attributes, and the dropout key may be None. If its attribute
`local` is true, a cell depends on the pixels around it alone, so that padding far away may be cut
off.
"""
