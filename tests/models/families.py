"""Every family of `models/` shrunk to a size that compiles at once, and what its outputs are under
each property.

Families are found by the registry: whatever module has `VARIANTS` and `Model` is tested; those on
images are apart, in test_image_families.py.
"""

import dataclasses
import functools
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

# S and T differ: a nudge of the embeddings finds its side by its length
VOCAB = 64
S = 10
T = 8
REPRESENTATIVES = 2  # of a family

SMALL_CORES = {  # arguments of cores at lengths of 8 and 10
  "chunked": {"query_chunk": 4, "key_chunk": 4},
  "local": {"window": 3},
} | topics.cases("SMALL_CORES")

# The features that a core lacks by its definition.
LACKING_FEATURES = topics.cases("LACKING_FEATURES")

# Cores with which a token may not see every token that the mask shows it.
BOUNDED_CORES = {"local", *topics.cases("BOUNDED_CORES")}

# Parameters that only a family's own objective reads, or only training.
PRETRAINING = {"xlnet": {"unknown"}} | topics.cases("TRAINING_PARAMETERS")


@dataclasses.dataclass(frozen=True)
class Case:
  """A shrunk variant of a family."""

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
    core = _turns(self.variant.design.core)[0]
    return core if isinstance(core, str) else core["name"]

  def lacks(self, feature: str) -> bool:
    return feature in LACKING_FEATURES.get(self.core, ())

  @property
  def decodes(self) -> bool:
    return "decoder" in self.sides and not self.lacks("decoding")

  def __hash__(self):
    return hash(self.name)


def families() -> list[str]:
  names = slots.names(t5x_like.models)
  modules = {name: slots.module(name, t5x_like.models) for name in names}
  return [
    n for n, m in modules.items() if hasattr(m, "VARIANTS") and issubclass(m.Model, Architecture)
  ]


def representatives() -> list[Case]:
  """The first variant of each of the first few designs of every family."""
  cases = []
  for family in families():
    designs: dict = {}
    for name, variant in slots.module(family, t5x_like.models).VARIANTS.items():
      small = shrunk(variant)
      designs.setdefault(repr(small), Case(f"{family}:{name}", family, small))
    cases += list(designs.values())[:REPRESENTATIVES]
  return cases


def covering(cases: list[Case]) -> list[Case]:
  """Choose cases, each with the most traits that those before it lack, until every trait is in one
  of them."""
  uncovered = set().union(*(_traits(case) for case in cases))
  chosen = []
  while uncovered:
    case = max(cases, key=lambda case: len(_traits(case) & uncovered))
    chosen.append(case)
    uncovered -= _traits(case)
  return sorted(chosen, key=cases.index)


# The fields of a design that the sight, padding, packing and decoding of a model depend on.
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
        position if isinstance(position, str) else position["name"] for position in _turns(value)
      ]
    traits.add((field, str(value)))
  return traits


def shrunk(variant: Variant, **changes) -> Variant:
  """Return the variant at width 16 with two layers, or one turn of them, and a changed design."""
  design = dataclasses.replace(variant.design, **changes)
  dims = variant.dims
  positions = _turns(design.position)
  partial = any(isinstance(p, dict) and p.get("fraction", 1.0) < 1 for p in positions)
  kv_heads = {dims.heads: 4, 1: 1}.get(dims.kv_heads, 2)
  period = math.lcm(
    len(design.windows),
    design.experts_every if design.experts else 1,
    len(positions),
    len(_turns(design.core)),
  )
  layers = 2 if period == 1 else min(period, dims.layers)
  cores = []
  for core in _turns(design.core):
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
    experts = dataclasses.replace(experts, **sizes, capacity_factor=4.0)  # nothing is dropped
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
  if special_tokens.pad in range(3, VOCAB):  # the ids that `tokens` draws
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


def _turns(spec) -> tuple:
  return spec if isinstance(spec, tuple) else (spec,)


@functools.cache
def arrays(case: Case) -> dict[str, jax.Array]:
  """Return random weights without compiling: none is zero or one, whatever the initialisation."""
  named = params.named_params(abstract(case))
  return {name: jnp.asarray(random_array(name, p.shape)) for name, p in named.items()}


def random_array(name: str, shape) -> np.ndarray:
  """Return random weights of a parameter, which depend on its name; scales are near one."""
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

  def make(key):
    return case.model_class(nnx.Rngs(params=key), variant=case.variant, **arguments)

  return jax.eval_shape(make, jax.random.key(0))


def model(case: Case, values=None, **arguments):
  return params.with_arrays(abstract(case, **arguments), arrays(case) if values is None else values)


# Batches


def tokens(length: int, seed: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(3, VOCAB, length).astype(np.int32)


# of a row, and of the two sequences in it
LENGTHS = {"encoder": (S, (4, 5)), "decoder": (T, (3, 4))}


def apart(case: Case) -> dict[str, np.ndarray]:
  """Return two rows with a sequence and padding in each."""
  batch = {}
  for side in case.sides:
    length, side_length = LENGTHS[side]
    rows = np.full((2, length), case.variant.tokens.pad or 0, np.int32)
    for row, n in enumerate(side_length):
      rows[row, :n] = tokens(n, row)
    batch |= features(case, side, rows)
  return batch


def short(case: Case) -> dict[str, np.ndarray]:
  """Return the first sequence of `apart` alone, without padding."""
  return {name: x[:1, : LENGTHS[name.split("_")[0]][1][0]] for name, x in apart(case).items()}


def packed(case: Case) -> dict[str, np.ndarray]:
  """Both sequences in one row, and garbage where its padding is."""
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


def whole(case: Case, rows: int) -> dict[str, np.ndarray]:
  """Rows without padding, or images."""
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


# What is computed, each compiled once


class Nudged(nnx.Module):
  """A token table that adds to the vectors of sequences as long as the nudge."""

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
def forward(case: Case) -> dict[str, np.ndarray]:
  """Logits of `apart`, `short`, `packed` and `whole`, of `whole` in bfloat16 and from a cache, and
  `reach`.

  `reach` [T, T] is how strongly the output at t depends on the input vector at s of the last stack.
  """
  length = LENGTHS[case.sides[-1]][0]
  skipped = {n for n, what in (("short", "length"), ("packed", "packing")) if case.lacks(what)}
  batches = {f.__name__: f(case) for f in (apart, short, packed) if f.__name__ not in skipped}
  batches["whole"] = whole(case, 2)
  first_rows = {name: x[:1] for name, x in batches["whole"].items()}

  @jax.jit
  def run(arrays):
    m = model(case, arrays)
    logits_by_name = {name: m(batch)["logits"] for name, batch in batches.items()}
    logits_by_name["bfloat16"] = model(case, arrays, dtype="bfloat16")(batches["whole"])["logits"]

    def project(nudge_TD):
      nudged = model(case, arrays)
      nudged.embed = Nudged(nudged.embed, nudge_TD)
      logits = nudged(first_rows)["logits"][0]
      return (
        logits.reshape(length, -1)
        @ jnp.asarray(random_array("way", (logits.size // length,)[:1] + (1,)))[:, 0]
      )

    zero = jnp.zeros((length, case.variant.embed or case.variant.dims.embed))
    _, pull = jax.vjp(project, zero)
    logits_by_name["reach"] = jnp.abs(jax.lax.map(lambda row: pull(row)[0], jnp.eye(length))).max(
      -1
    )
    if case.decodes:
      logits_by_name["decode_logits"] = decode_logits(m, batches["whole"])
    return logits_by_name

  return jax.tree.map(np.asarray, run(arrays(case)))


def decode_logits(m, batch: dict) -> jax.Array:
  """Logits of the decoder's tokens fed through a cache: three at once, then one by one."""
  tokens_BT = jnp.asarray(batch["decoder_input_tokens"])
  first, state = m.decode(tokens_BT[:, :3], m.start_decoding(batch, T))

  def step(state, tokens_B):
    logits_B1V, state = m.decode(tokens_B[:, None], state)
    return state, logits_B1V[:, 0]

  _, rest_TBV = jax.lax.scan(step, state, tokens_BT[:, 3:].T)
  return jnp.concatenate([first, jnp.swapaxes(rest_TBV, 0, 1)], axis=1)


def value_and_gradients(case: Case, rules: Rules | None = None, **form):
  """A loss of the logits and every auxiliary scalar: (value, gradients), as numpy."""
  batch = whole(case, 4)

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
def plain(case: Case):
  return value_and_gradients(case)


def rules(case: Case) -> Rules:
  """Data, FSDP and tensor parallelism; data, experts and tensor where there are experts."""
  mesh = {"data": 2, "expert" if case.variant.design.experts else "fsdp": 2, "tensor": 2}
  changes = (
    {"kv_heads": None, "activation_kv_heads": None} if case.variant.dims.kv_heads % 2 else None
  )
  return Rules.make(make_mesh(mesh), changes)


def design_case(family: str, name: str, design: Design, **options) -> Case:
  """A case of a family's architecture with any design."""
  variants = slots.module(family, t5x_like.models).VARIANTS
  base = dataclasses.replace(next(iter(variants.values())), design=design, **options)
  return Case(f"{family}:{name}", family, shrunk(base))


# Comparisons

# ways of running the layers
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
