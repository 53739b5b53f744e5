"""Feed-forward sublayers, one file each; a stack imports only the kinds that its design has.

A file's `make` builds the layer from the widths of the residual stream and of the hidden layer, and takes as many of
the builder's options as its signature names.
"""
