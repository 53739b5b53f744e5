"""Small variants of every family of `models/`, their batches, and their outputs in several forms.

Families are found by the registry: every module that has `VARIANTS` and `Model` is tested. See
image_families.py for families of images.
"""

import dataclasses
import functools
import itertools
import math
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import t5x_like.models
from t5x_like import slots
from t5x_like.architectures.architecture import Architecture
from t5x_like.architectures.decoder import Decoder
from t5x_like.architectures.design import Design, Variant
from t5x_like.architectures.encoder import Encoder
from t5x_like.architectures.encoder_decoder import EncoderDecoder
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.parallel.mesh import make_mesh
from t5x_like.parallel.rules import Rules
from t5x_like.resolution import height_and_width
from tests import topics

# S and T differ, because `NudgedEmbed` recognises a side by its length.
VOCAB = 64
S = 10
T = 8
MAX_REPRESENTATIVES = 2  # of a family

# Arguments of cores for lengths of 8 and 10.
SMALL_CORES = {
  "chunked": {"query_chunk": 4, "key_chunk": 4},
  "local": {"window": 3},
} | topics.cases("SMALL_CORES")

# The features that a core does not have by its definition.
LACKING_FEATURES = topics.cases("LACKING_FEATURES")

# Cores in which a token may not see every token that the mask allows.
BOUNDED_CORES = {"local", *topics.cases("BOUNDED_CORES")}

# Parameters without a gradient here: only the objective of a family, or only training, reads them.
UNTRAINED = {"xlnet": {"unknown"}} | topics.cases("TRAINING_PARAMETERS")


@dataclasses.dataclass(frozen=True)
class Case:
  """A small variant of a family."""

  name: str
  family: str
  variant: Variant

  @property
  def model_class(self) -> type[Architecture]:
    return slots.module(self.family, t5x_like.models).Model

  @property
  def sides(self) -> tuple[str, ...]:
    kinds = {Encoder: ("encoder",), Decoder: ("decoder",), EncoderDecoder: ("encoder", "decoder")}
    return next((sides for kind, sides in kinds.items() if issubclass(self.model_class, kind)), ())

  @property
  def core(self) -> str:
    core = _as_tuple(self.variant.design.core)[0]
    return core if isinstance(core, str) else core["name"]

  def lacks(self, feature: str) -> bool:
    return feature in LACKING_FEATURES.get(self.core, ())

  @property
  def decodes(self) -> bool:
    return "decoder" in self.sides and not self.lacks("decoding")

  def __hash__(self):
    return hash(self.name)


def list_families() -> list[str]:
  names = slots.names(t5x_like.models)
  modules = {name: slots.module(name, t5x_like.models) for name in names}
  return [
    n for n, m in modules.items() if hasattr(m, "VARIANTS") and issubclass(m.Model, Architecture)
  ]


def list_representatives() -> list[Case]:
  """Return the first variant of each of the first few designs of every family."""
  cases = []
  for family in list_families():
    designs: dict = {}
    for name, variant in slots.module(family, t5x_like.models).VARIANTS.items():
      small = shrink(variant)
      designs.setdefault(repr(small), Case(f"{family}:{name}", family, small))
    cases += list(designs.values())[:MAX_REPRESENTATIVES]
  return cases


def choose_covering(cases: list[Case]) -> list[Case]:
  """Choose cases that together have all traits, greedily by the number of new traits."""
  uncovered = set().union(*(_traits(case) for case in cases))
  chosen = []
  while uncovered:
    case = max(cases, key=lambda case: len(_traits(case) & uncovered))
    chosen.append(case)
    uncovered -= _traits(case)
  return sorted(chosen, key=cases.index)


# The fields of a design on which visibility, padding, packing and decoding depend.
_TRAIT_FIELDS = (
  "norm_position",
  "parallel",
  "position",
  "qk_norm",
  "attention_scale",
  "windows",
  "latent",
  "experts",
)


def _traits(case: Case) -> set[tuple[str, str]]:
  traits = {
    ("sides", str(case.sides)),
    ("core", case.core),
    ("embed", str(bool(case.variant.embed))),
  }
  for field in _TRAIT_FIELDS:
    value = getattr(case.variant.design, field)
    if field in ("latent", "experts", "attention_scale"):
      value = value is not None and type(value).__name__
    if field == "windows":
      value = len(value)
    if field == "position":
      value = [
        position if isinstance(position, str) else position["name"] for position in _as_tuple(value)
      ]
    traits.add((field, str(value)))
  return traits


def shrink(variant: Variant, **changes) -> Variant:
  """Return a variant of width 16 with two layers, or one period of different layers.

  Args:
    changes: fields of the design.
  """
  design = merge_equal_layers(dataclasses.replace(variant.design, **changes))
  dims = variant.dims
  positions = _as_tuple(design.position)
  partial = any(isinstance(p, dict) and p.get("fraction", 1.0) < 1 for p in positions)
  kv_heads = {dims.heads: 4, 1: 1}.get(dims.kv_heads, 2)
  period = math.lcm(
    len(design.windows),
    design.experts_every if design.experts else 1,
    len(positions),
    len(_as_tuple(design.core)),
  )
  layers = 2 if period == 1 else min(period, dims.layers)
  cores = []
  for core in _as_tuple(design.core):
    core = {"name": core} if isinstance(core, str) else core
    cores.append(core | SMALL_CORES.get(core["name"], {}))
  experts = design.experts
  if experts:
    groups = min(experts.groups, 2)
    mlp = experts.mlp and 24
    sizes = dict(
      experts=4,
      top_k=min(experts.top_k, 3 if groups == 1 else 2),
      groups=groups,
      top_groups=1,
      mlp=mlp,
    )
    experts = dataclasses.replace(experts, **sizes, capacity_factor=4.0)  # drops no token
  position = [
    {**p, "length": 16} if isinstance(p, dict) and "length" in p else p for p in positions
  ]
  design = dataclasses.replace(
    design,
    windows=tuple(None if w is None else 3 for w in design.windows),
    core=cores[0] if len(cores) == 1 else tuple(cores),
    experts=experts,
    dense_layers=min(design.dense_layers, 1),
    latent=design.latent
    and dict(rank=6, query_rank=5 if design.latent.get("query_rank") else None, rope=2, value=3),
    position=tuple(position) if isinstance(design.position, tuple) else position[0],
  )
  head_dim = 8 if partial else 4
  special_tokens = variant.tokens
  if special_tokens.pad in range(3, VOCAB):  # the ids that `tokens` draws from
    special_tokens = dataclasses.replace(special_tokens, pad=0)
  return dataclasses.replace(
    variant,
    dims=Dims(embed=16, heads=4, kv_heads=kv_heads, head_dim=head_dim, mlp=32, layers=layers),
    design=design,
    tokens=special_tokens,
    vocab_size=VOCAB,
    embed=8 if variant.embed else None,
    decoder_layers=layers if variant.decoder_layers else None,
  )


def merge_equal_layers(design: Design) -> Design:
  """Return the design with one layer in place of neighbours of equal windows and positions."""
  positions = _as_tuple(design.position)
  if len(positions) not in (1, len(design.windows)):
    return design
  layers = list(zip(design.windows, itertools.cycle(positions)))
  different_layers = [layer for layer, _ in itertools.groupby(layers)]
  windows, merged_positions = zip(*different_layers)
  if isinstance(design.position, tuple):
    return dataclasses.replace(design, windows=windows, position=merged_positions)
  return dataclasses.replace(design, windows=windows)


def _as_tuple(spec) -> tuple:
  return spec if isinstance(spec, tuple) else (spec,)


@functools.cache
def arrays(case: Case) -> dict[str, jax.Array]:
  """Return random weights, without compiling the initialisation; none is exactly zero or one."""
  named = params.named_params(abstract(case))
  return {name: jnp.asarray(random_array(name, p.shape)) for name, p in named.items()}


def random_array(name: str, shape) -> np.ndarray:
  """Return random values of a parameter, which depend on its name; scales are near one."""
  generator = np.random.default_rng(zlib.crc32(name.encode()))
  noise = generator.standard_normal(shape).astype(np.float32)
  if name.endswith("scale"):
    return 1 + 0.1 * noise
  if name.endswith("bias"):
    return 0.1 * noise
  if "embed" in name or len(shape) < 2:
    return noise
  return noise / math.sqrt(shape[-2])


@functools.cache
def abstract(case: Case, **arguments):
  """Return a model without weights."""

  def make(key):
    return case.model_class(nnx.Rngs(params=key), variant=case.variant, **arguments)

  return jax.eval_shape(make, jax.random.key(0))


def model(case: Case, values=None, **arguments):
  return params.with_arrays(abstract(case, **arguments), arrays(case) if values is None else values)


# Batches


def tokens(length: int, seed: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(3, VOCAB, length).astype(np.int32)


# The length of a row, and of its two sequences.
LENGTHS = {"encoder": (S, (4, 5)), "decoder": (T, (3, 4))}


def separate_rows(case: Case) -> dict[str, np.ndarray]:
  """Return two rows, each of a sequence and padding."""
  batch = {}
  for side in case.sides:
    length, side_length = LENGTHS[side]
    rows = np.full((2, length), case.variant.tokens.pad or 0, np.int32)
    for row, n in enumerate(side_length):
      rows[row, :n] = tokens(n, row)
    batch |= features(case, side, rows)
  return batch


def short_row(case: Case) -> dict[str, np.ndarray]:
  """Return the first row of `separate_rows` without padding."""
  batch = {}
  for name, x in separate_rows(case).items():
    side = name.split("_")[0]
    _, (first_length, _) = LENGTHS[side]
    batch[name] = x[:1, :first_length]
  return batch


def packed_row(case: Case) -> dict[str, np.ndarray]:
  """Return both sequences in one row, with random tokens in place of padding."""
  batch = {}
  for side in case.sides:
    length, (a, b) = LENGTHS[side]
    garbage = length - a - b
    row = np.concatenate([tokens(a, 0), tokens(b, 1), tokens(garbage, 9)])[None]
    batch |= features(case, side, row)
    batch[f"{side}_segment_ids"] = np.repeat([1, 2, 0], (a, b, garbage)).astype(np.int32)[None]
    batch[f"{side}_positions"] = np.concatenate(
      [np.arange(n, dtype=np.int32) for n in (a, b, garbage)]
    )[None]
    if f"{side}_token_types" in batch:
      types = features(case, side, row[:, :1].repeat(length, 1))[f"{side}_token_types"][0]
      batch[f"{side}_token_types"] = np.concatenate([types[:a], types[:b], types[:garbage]])[None]
  return batch


def full_rows(case: Case, rows: int) -> dict[str, np.ndarray]:
  """Return rows without padding, or images."""
  if not case.sides:
    shape = (rows, *height_and_width(case.variant.resolution), case.variant.channels)
    batch = {"image": np.random.default_rng(5).standard_normal(shape).astype(np.float32)}
    if "reconstruction" in str(case.variant.head):
      order = np.stack([np.random.default_rng(row).permutation(9) for row in range(rows)]).astype(
        np.int32
      )
      batch |= {"visible_patches": order[:, :3], "masked_patches": order[:, 3:]}
    if "patch_colours" in str(case.variant.head):
      batch["patch_sources"] = np.tile(np.array([0, -1, 2, 5, 4, -1, 6, 0, 8], np.int32), (rows, 1))
    return batch
  batch = {}
  for side in case.sides:
    length = LENGTHS[side][0]
    batch |= features(case, side, tokens(rows * length, 5).reshape(rows, length))
  return batch


def features(case: Case, side: str, rows: np.ndarray) -> dict[str, np.ndarray]:
  batch = {f"{side}_input_tokens": rows}
  if case.variant.types and side == "encoder":
    batch["encoder_token_types"] = np.broadcast_to(np.arange(rows.shape[1]) % 2, rows.shape).astype(
      np.int32
    )
  return batch


# Computations, each compiled once


class NudgedEmbed(nnx.Module):
  """A token table that adds `nudge_TD` to the vectors of sequences of its length."""

  def __init__(self, embed, nudge_TD):
    self.inner = embed
    self.nudge = nudge_TD

  def __call__(self, ids_BT, dtype):
    x_BTD = self.inner(ids_BT, dtype)
    return x_BTD + self.nudge if ids_BT.shape[1] == self.nudge.shape[0] else x_BTD

  @property
  def table(self):
    return self.inner.table


@functools.cache
def compute_outputs(case: Case) -> dict[str, np.ndarray]:
  """Return logits of all batches, and of the full rows in bfloat16 and from a cache; and `reach`.

  `reach` [T, T] is the largest gradient of the output at t by the input vector at s of the last
  stack.
  """
  length = LENGTHS[case.sides[-1]][0]
  full = full_rows(case, 2)
  rows = {name: np.concatenate([full[name], x]) for name, x in separate_rows(case).items()}
  batches = {}
  if not case.lacks("length"):
    batches["short_row"] = short_row(case)
  if not case.lacks("packing"):
    batches["packed_row"] = packed_row(case)

  @jax.jit
  def run(arrays):
    m = model(case, arrays)
    logits_by_name = {name: m(batch)["logits"] for name, batch in batches.items()}
    low_precision_model = model(case, arrays, dtype="bfloat16")
    logits_by_name["bfloat16"] = low_precision_model(full)["logits"]

    def project(nudge_TD):
      """Return (a number for each token of the first row, the logits of all rows)."""
      nudged = model(case, arrays)
      nudged.embed = NudgedEmbed(nudged.embed, nudge_TD)
      logits = nudged(rows)["logits"]
      direction = jnp.asarray(random_array("way", (logits[0].size // length, 1)))[:, 0]
      return logits[0].reshape(length, -1) @ direction, logits

    # One forward pass of all rows, with a nudge of zero, is also that of the gradients.
    zero = jnp.zeros((length, case.variant.embed or case.variant.dims.embed))
    _, vjp, logits = jax.vjp(project, zero, has_aux=True)
    logits_by_name["full_rows"], logits_by_name["separate_rows"] = jnp.split(logits, 2)
    gradients = jax.lax.map(lambda row: vjp(row)[0], jnp.eye(length))
    logits_by_name["reach"] = jnp.abs(gradients).max(-1)
    if case.decodes:
      logits_by_name["decode_logits"] = decode_logits(m, full)
    return logits_by_name

  return jax.tree.map(np.asarray, run(arrays(case)))


def decode_logits(m, batch: dict) -> jax.Array:
  """Return the logits of decoding with a cache: three tokens at once, then one by one."""
  tokens_BT = jnp.asarray(batch["decoder_input_tokens"])
  first, state = m.decode(tokens_BT[:, :3], m.start_decoding(batch, T))

  def step(state, tokens_B):
    logits_B1V, state = m.decode(tokens_B[:, None], state)
    return state, logits_B1V[:, 0]

  _, rest_TBV = jax.lax.scan(step, state, tokens_BT[:, 3:].T)
  return jnp.concatenate([first, jnp.swapaxes(rest_TBV, 0, 1)], axis=1)


def value_and_gradients(case: Case, rules: Rules | None = None, **form):
  """Return (value, gradients) of a loss of the logits and all auxiliary scalars, in NumPy."""
  batch = full_rows(case, 4)

  def total(arrays, batch):
    out = model(case, arrays, **form)(batch)
    logits = out.pop("logits")
    direction = jnp.asarray(random_array("way", (*logits.shape, 1))[..., 0])
    return jnp.mean(logits * direction) + sum(jnp.mean(x) for x in out.values())

  def run(arrays, batch):
    if rules is None:
      return jax.value_and_grad(total)(arrays, batch)
    with rules.activate():
      return jax.value_and_grad(total)(arrays, batch)

  values = arrays(case)
  if rules is not None:
    values = jax.device_put(values, rules.param_shardings(params.named_params(abstract(case))))
    batch = jax.device_put(batch, rules.batch())
  return jax.tree.map(np.asarray, jax.jit(run)(values, batch))


@functools.cache
def plain_value_and_gradients(case: Case):
  return value_and_gradients(case)


def rules(case: Case) -> Rules:
  """Return rules of a mesh of data, tensor, and FSDP or, if the case has them, experts."""
  mesh = {"data": 2, "expert" if case.variant.design.experts else "fsdp": 2, "tensor": 2}
  changes = (
    {"kv_heads": None, "activation_kv_heads": None} if case.variant.dims.kv_heads % 2 else None
  )
  return Rules.make(make_mesh(mesh), changes)


def design_case(family: str, name: str, design: Design, **options) -> Case:
  """Return a case of a family's architecture with another design."""
  variants = slots.module(family, t5x_like.models).VARIANTS
  base = dataclasses.replace(next(iter(variants.values())), design=design, **options)
  return Case(f"{family}:{name}", family, shrink(base))


# Comparisons

# Forms of running the layers.
FORMS = [dict(layers="loop", remat="dots"), dict(layers="scan", remat="full")]


def assert_close(outputs, expected, rtol=1e-5, atol=1e-5, name=""):
  scale = max(np.abs(expected).max(), 1e-30)
  np.testing.assert_allclose(outputs, expected, rtol=rtol, atol=atol * scale, err_msg=name)


def assert_same(outputs, expected):
  assert_close(outputs[0], expected[0], rtol=1e-4)
  assert outputs[1].keys() == expected[1].keys()
  largest = max(np.abs(g).max() for g in expected[1].values())
  for name, gradient in expected[1].items():
    np.testing.assert_allclose(
      outputs[1][name], gradient, rtol=1e-3, atol=2e-5 * largest, err_msg=name
    )
