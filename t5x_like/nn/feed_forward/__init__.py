"""Feed-forward sublayers, one file each; a stack imports only the kinds that its design has.

A file's `make` builds the layer from the widths of the residual stream and the hidden layer, and takes the builder's
options that its signature names.
"""
