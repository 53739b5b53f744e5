"""Pure layers, from which every model family is assembled.

The dialect: a layer is an `nnx.Module` used as a plain pytree (`nnx.set_graph_mode(False)`), built once from
`nnx.Rngs` and called as a pure function. Everything that varies during a call (dropout keys, positions, masks,
caches) is an argument; everything that varies between models is a different object chosen at construction.
"""

from flax import nnx

nnx.set_graph_mode(False)
