"""T5X written again for tests: its trees, network, Adafactor and checkpoint files.

From the equations and formats of github.com/google-research/t5x (`examples/t5/network.py`,
`examples/scalable_t5`, `adafactor.py`, `checkpoints.py`). Nothing here uses the package under test.
"""

import json
import math
import pathlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from flax import serialization

# The chunks of T5X hold up to 64 MiB.
STREAM = 128
TABLE = 384
CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Form:
  """A kind of checkpoint: gated or not, scanned or not, a table of relative positions per stack or
  per layer, separate axes of heads or not; sizes are such that Adafactor factors kernels and the
  token table."""

  gated: bool = True
  scanned: bool = False
  per_layer: bool = False
  separate_heads: bool = False
  heads: int = 4
  head_dim: int = 48
  mlp: int = 160
  layers: tuple[int, int] = (2, 2)

  @property
  def tied(self) -> bool:
    return not self.gated


FORMS = {
  "t5-1.1": Form(),
  "t5-1.0": Form(gated=False),
  "scanned": Form(scanned=True, per_layer=True),
  "byt5-scanned": Form(scanned=True, per_layer=True, layers=(3, 1)),
  "umt5": Form(scanned=True, per_layer=True, separate_heads=True),
  "per-layer": Form(per_layer=True),
}


def tree(form: Form, seed: int = 0) -> dict[str, np.ndarray]:
  """Random parameters by path."""
  draw = np.random.default_rng(seed)
  params = {}

  def kernel(*shape, size):
    return np.float32(draw.normal(size=shape) * size)

  def joined_shape(first: bool):
    inner = (form.heads, form.head_dim) if form.separate_heads else (form.heads * form.head_dim,)
    return (STREAM, *inner) if first else (*inner, STREAM)

  params["token_embedder/embedding"] = kernel(TABLE, STREAM, size=0.3)
  if not form.tied:
    params["decoder/logits_dense/kernel"] = kernel(STREAM, TABLE, size=0.09)
  for side, layers in zip(("encoder", "decoder"), form.layers):
    attention = "attention" if side == "encoder" else "self_attention"
    attentions = {attention: f"pre_{attention}_layer_norm"}
    if side == "decoder":
      attentions["encoder_decoder_attention"] = "pre_cross_attention_layer_norm"
    params[f"{side}/{side}_norm/scale"] = 1 + kernel(STREAM, size=0.1)
    bias = (form.heads, 32)
    if not form.per_layer:
      params[f"{side}/relpos_bias/rel_embedding"] = kernel(*bias, size=0.5)
    blocks = []
    for _ in range(layers):
      block = {"relpos_bias/rel_embedding": kernel(*bias, size=0.5)} if form.per_layer else {}
      for name, norm in attentions.items():
        block[f"{norm}/scale"] = 1 + kernel(STREAM, size=0.1)
        for part in ("query", "key", "value"):
          block[f"{name}/{part}/kernel"] = kernel(
            *joined_shape(True), size=0.05 if part == "query" else 0.09
          )
        block[f"{name}/out/kernel"] = kernel(*joined_shape(False), size=0.07)
      block["pre_mlp_layer_norm/scale"] = 1 + kernel(STREAM, size=0.1)
      for part in ("wi_0", "wi_1") if form.gated else ("wi",):
        block[f"mlp/{part}/kernel"] = kernel(STREAM, form.mlp, size=0.09)
      block["mlp/wo/kernel"] = kernel(form.mlp, STREAM, size=0.07)
      blocks.append(block)
    for name in blocks[0]:
      if form.scanned:
        params[f"{side}/{side}/{name}"] = np.stack([block[name] for block in blocks], axis=1)
      else:
        params |= {f"{side}/layers_{i}/{name}": block[name] for i, block in enumerate(blocks)}
  return params


def layer(form: Form, params, side: str, number: int) -> dict:
  """The parameters of one layer, by the rest of their paths."""
  prefix = f"{side}/{side}/" if form.scanned else f"{side}/layers_{number}/"
  layer_params = {name[len(prefix) :]: x for name, x in params.items() if name.startswith(prefix)}
  return {name: x[:, number] for name, x in layer_params.items()} if form.scanned else layer_params


def logits(form: Form, params, batch) -> jax.Array:
  """The network without dropout, in float32, on rows without packing."""
  encoder_tokens = batch["encoder_input_tokens"]
  decoder_tokens = batch["decoder_input_tokens"]
  targets = batch["decoder_target_tokens"]
  embedding = params["token_embedder/embedding"]
  valid_S = encoder_tokens > 0
  valid_T = targets > 0
  x = embedding[encoder_tokens]
  for i in range(form.layers[0]):
    p = layer(form, params, "encoder", i)
    mask = valid_S[:, :, None] & valid_S[:, None, :]
    h = norm(x, p["pre_attention_layer_norm/scale"])
    x = x + attend(
      form, p, "attention", h, h, mask, bias(params, p, "encoder", encoder_tokens.shape[1])
    )
    x = x + feed_forward(form, p, norm(x, p["pre_mlp_layer_norm/scale"]))
  encoded = norm(x, params["encoder/encoder_norm/scale"])
  y = embedding[decoder_tokens]
  length = decoder_tokens.shape[1]
  for i in range(form.layers[1]):
    p = layer(form, params, "decoder", i)
    mask = valid_T[:, :, None] & valid_T[:, None, :] & np.tril(np.ones((length, length), bool))
    h = norm(y, p["pre_self_attention_layer_norm/scale"])
    y = y + attend(form, p, "self_attention", h, h, mask, bias(params, p, "decoder", length))
    h = norm(y, p["pre_cross_attention_layer_norm/scale"])
    y = y + attend(
      form,
      p,
      "encoder_decoder_attention",
      h,
      encoded,
      valid_T[:, :, None] & valid_S[:, None, :],
      0.0,
    )
    y = y + feed_forward(form, p, norm(y, p["pre_mlp_layer_norm/scale"]))
  y = norm(y, params["decoder/decoder_norm/scale"])
  return (
    y @ embedding.T / math.sqrt(STREAM) if form.tied else y @ params["decoder/logits_dense/kernel"]
  )


def loss(form: Form, params, batch, z_loss: float = 0.0) -> jax.Array:
  """The mean over target tokens of the cross-entropy and `z_loss * log(Z)^2`."""
  logits_BTV = logits(form, params, batch)
  weights = batch["decoder_loss_weights"]
  log_z = jax.scipy.special.logsumexp(logits_BTV, axis=-1)
  picked = jnp.take_along_axis(logits_BTV, batch["decoder_target_tokens"][..., None], axis=-1)[
    ..., 0
  ]
  return jnp.sum((log_z - picked + z_loss * log_z**2) * weights) / jnp.sum(weights)


def norm(x, scale):
  return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def attend(form: Form, p, name, x, memory, mask, added):
  def project(part, of):
    kernel = p[f"{name}/{part}/kernel"].reshape(STREAM, form.heads, form.head_dim)
    return jnp.einsum("bsd,dnh->bsnh", of, kernel)

  scores = jnp.einsum("btnh,bsnh->bnts", project("query", x), project("key", memory)) + added
  scores = jnp.where(mask[:, None], scores, -1e10)
  mixed = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, axis=-1), project("value", memory))
  return jnp.einsum(
    "btnh,nhd->btd", mixed, p[f"{name}/out/kernel"].reshape(form.heads, form.head_dim, STREAM)
  )


def feed_forward(form: Form, p, x):
  if not form.gated:
    return jax.nn.relu(x @ p["mlp/wi/kernel"]) @ p["mlp/wo/kernel"]
  return (
    jax.nn.gelu(x @ p["mlp/wi_0/kernel"], approximate=True)
    * (x @ p["mlp/wi_1/kernel"])
    @ p["mlp/wo/kernel"]
  )


def bias(params, p, side, length):
  """Logits added for relative positions, [1, heads, length, length]."""
  table = p.get("relpos_bias/rel_embedding", params.get(f"{side}/relpos_bias/rel_embedding"))
  back = np.arange(length)[:, None] - np.arange(length)[None, :]
  exact, base, distance = (
    (8, 16 * (back < 0), np.abs(back)) if side == "encoder" else (16, 0, np.maximum(back, 0))
  )
  far = (
    np.log(np.maximum(distance, 1) / exact + np.finfo(np.float32).eps)
    / math.log(128 / exact)
    * exact
  )
  bucket = base + np.where(
    distance < exact, distance, np.minimum(exact + far.astype(int), 2 * exact - 1)
  )
  return table[:, bucket][None]


def is_rows(path: str) -> bool:
  """Whether the input of the kernel, rather than its output, is the residual stream."""
  return not path.endswith(("out/kernel", "wo/kernel"))


def factor_second_moments(
  form: Form, path: str, shape
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
  """The axes that `v_row` and `v_col` keep; None for an array with full second moments."""
  axes = set(range(len(shape)))
  if len(shape) > 2:  # by logical axes: rows are `embed`, `layers` belongs to both
    stacked_axes = {1} if form.scanned else set()
    if path.endswith("rel_embedding"):
      return None
    rows = {0} if is_rows(path) else {len(shape) - 1}
    return tuple(sorted(rows | stacked_axes)), tuple(sorted(axes - rows | stacked_axes))
  if len(shape) < 2 or sorted(shape)[-2] < 128 or path.endswith("/scale"):
    return None
  small, large = np.argsort(shape, kind="stable").tolist()
  return (small,), (large,)


def moments(form: Form, params, seed: int = 1) -> dict[str, dict[str, np.ndarray]]:
  """A state of Adafactor after some steps, with `v_row`, `v_col`, `v` and `m` for each
  parameter."""
  draw = np.random.default_rng(seed)
  state_by_path = {}
  for path, x in params.items():
    square = np.float32(np.square(draw.normal(size=x.shape) * 0.02))
    state = {kind: np.zeros(1, np.float32) for kind in ("v_row", "v_col", "v", "m")}
    if kept_axes := factor_second_moments(form, path, x.shape):
      for kind, axes in zip(("v_row", "v_col"), kept_axes):
        state[kind] = square.mean(axis=tuple(set(range(x.ndim)) - set(axes)))
    else:
      state["v"] = square
    state_by_path[path] = state
  return state_by_path


def adafactor(form: Form, params, state, grads, step: int, rate: float):
  """The parameters after the update of T5X, and the new state."""
  decay = 1 - (step + 1.0) ** -0.8
  new_params = {}
  new_state = {}
  for path, p in params.items():
    g = np.float64(grads[path])
    old = {kind: np.float64(x) for kind, x in state[path].items()}
    stacked = form.scanned and path.startswith(("encoder/encoder/", "decoder/decoder/"))
    over = tuple(axis for axis in range(p.ndim) if not (stacked and axis == 1))
    square = g * g + 1e-30
    kept_axes = factor_second_moments(form, path, p.shape)
    if kept_axes:
      rows, columns = kept_axes
      reduced_axes = [tuple(set(range(p.ndim)) - set(axes)) for axes in kept_axes]
      v_row, v_col = (
        decay * old[kind] + (1 - decay) * square.mean(axis=axes)
        for kind, axes in zip(("v_row", "v_col"), reduced_axes)
      )
      row = np.expand_dims(v_row, reduced_axes[0])
      column = np.expand_dims(v_col, reduced_axes[1])
      row_axes = tuple(axis for axis in rows if axis not in columns)
      y = g * (row / row.mean(axis=row_axes, keepdims=True)) ** -0.5 * column**-0.5
      new_state[path] = {"v_row": v_row, "v_col": v_col}
    else:
      v = decay * old["v"] + (1 - decay) * square
      y, new_state[path] = g * v**-0.5, {"v": v}
    y = y / np.maximum(1.0, np.sqrt(np.mean(y * y, axis=over, keepdims=True)))
    size = np.maximum(np.sqrt(np.mean(np.float64(p) ** 2, axis=over, keepdims=True)), 1e-3)
    new_params[path] = p - rate * size * y
  return new_params, new_state


def nest(flat: dict) -> dict:
  tree: dict = {}
  for path, leaf in flat.items():
    *parents, last = path.split("/")
    node = tree
    for key in parents:
      node = node.setdefault(key, {})
    node[last] = leaf
  return tree


def write(
  directory, params, state=None, step: int | None = 7, *, save_dtype="float32", remote=False
) -> pathlib.Path:
  """Write a checkpoint as `Checkpointer.save` does: parameters and full moments as Zarr, all others
  in the index.

  Parameters are cast to `save_dtype` by TensorStore's driver `cast`; specs in the index have
  relative paths.
  """
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True)

  def store(name: str, array: np.ndarray, dtype: str):
    chunks = list(array.shape)
    while math.prod(chunks) * array.dtype.itemsize > CHUNK_BYTES:
      largest = chunks.index(max(chunks))
      chunks[largest] //= 2
    metadata = {"compressor": {"id": "gzip"}, "shape": list(array.shape), "chunks": chunks}
    file = {"driver": "file", "path": name.replace("/", ".")}
    spec = {"driver": "zarr", "dtype": dtype, "kvstore": file, "metadata": metadata}
    opened = json.loads(json.dumps(spec))
    opened["kvstore"]["path"] = f"{directory}/{file['path']}"
    cast = {"base": opened, "driver": "cast", "dtype": array.dtype.name}
    ts.open(cast, create=True, open=True).result().write(array).result()
    if remote:  # as written to gs://, with the bucket that T5X puts there, and copied here
      spec["kvstore"] = {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": file["path"]}
    return ts.Spec(spec).to_json()

  tree = {
    "target": nest({path: store(f"target/{path}", x, save_dtype) for path, x in params.items()})
  }
  if step is not None:
    tree["state"] = {"step": np.int32(step)}
  if state is not None:
    tree["state"]["param_states"] = nest(
      {
        path: {
          kind: store(f"state/param_states/{path}/v", x, "float32")
          if kind == "v" and x.shape != (1,)
          else x
          for kind, x in kinds.items()
        }
        for path, kinds in state.items()
      }
    )
  data = serialization.msgpack_serialize({"version": 3, "optimizer": tree})
  (directory / "checkpoint").write_bytes(data)
  return directory
