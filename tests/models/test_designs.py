"""Every choice of a design has the properties of families, in all kinds of stacks.

The designs below contain each choice at least once, in combinations that no published family has.
"""

import dataclasses
import inspect

import jax
import pytest
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.build import StackBuilder
from t5x_like.architectures.design import Design
from t5x_like.errors import UserError
from t5x_like.models import gpt, mpt, transformer
from t5x_like.nn import params, positions
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import ACTIVATIONS, Experts
from t5x_like.nn.norm import NORMS
from tests.models import families
from tests.models.families import FORMS, assert_same
from tests.models.test_families import CHECKS

LLAMA3 = {"factor": 4.0, "low": 1.0, "high": 2.0, "original_length": 4}

# name: (design, number of KV heads)
DESIGNS = {
  "pre_relative_shared": (
    Design(
      norm="rmsnorm",
      position="relative_bias",
      mlp_dropout=True,
      shared_dropout=True,
      logits_scale=True,
    ),
    4,
  ),
  "post_sinusoidal": (
    Design(
      norm="layernorm",
      norm_position="post",
      position="sinusoidal",
      embed_scale=True,
      biases=("qkv", "out", "mlp"),
      activation="gelu",
    ),
    4,
  ),
  "sandwich_rope_softcap_windows": (
    Design(
      norm="rmsnorm_plus_one",
      norm_position="sandwich",
      position="rope",
      softcap=5.0,
      logits_softcap=3.0,
      windows=(3, None),
      activation="geglu_tanh",
    ),
    2,
  ),
  "deepnorm_learned": (
    Design(
      norm="layernorm",
      norm_position="deepnorm",
      activation="gelu_tanh",
      attention_dropout="keys",
      tied=False,
      norm_epsilon=1e-5,
      position={"name": "learned", "length": 16, "offset": 2},
    ),
    4,
  ),
  "parallel_one_norm_rope_interleaved": (
    Design(
      norm="layernorm_no_bias",
      parallel="one_norm",
      activation="swiglu",
      position={"name": "rope", "interleaved": True},
    ),
    1,
  ),
  "parallel_two_norms_rope_partial": (
    Design(
      norm="layernorm",
      parallel="two_norms",
      activation="silu",
      position={"name": "rope", "fraction": 0.25},
      tied=False,
    ),
    4,
  ),
  "rope_llama3_qk_norm": (
    Design(
      position={"name": "rope", "theta": 100.0, "llama3": LLAMA3},
      qk_norm=True,
      activation="reglu",
      attention_scale=0.7,
      logits_bias=True,
    ),
    2,
  ),
  "rope_linear_windows": (
    Design(
      position={"name": "rope", "linear": {"factor": 2.0}},
      windows=(3,),
      activation="geglu",
      layer_scale=0.5,
    ),
    1,
  ),
  "alibi_embed_norm": (
    Design(
      position="alibi",
      embed_norm=True,
      activation="tanh",
      init_stddev=0.02,
      embed_init=0.05,
      residual_init=True,
    ),
    4,
  ),
  "alibi_mpt_turns_of_experts": (
    Design(
      position={"name": "alibi", "mpt": True},
      experts=Experts(top_k=2),
      experts_every=2,
      activation="swiglu",
    ),
    2,
  ),
  "latent_dense_first_sigmoid": (
    Design(
      position={"name": "rope", "interleaved": True},
      latent=dict(rank=6, query_rank=None, rope=2, value=3),
      experts=Experts(experts=4, top_k=2, router="sigmoid", groups=2),
      dense_layers=1,
      activation="swiglu_clamped",
      biases=("qkv", "out", "mlp"),
    ),
    4,
  ),
  "shaw_post": (
    Design(
      norm_position="post",
      position={"name": "shaw", "clip": 3},
      activation="relu",
      kernel_scales=(0.5, 1.0, 0.25, 2.0),
      no_dropout=("inputs",),
    ),
    2,
  ),
  "shaw_keys_softcap": (
    Design(position={"name": "shaw", "clip": 2, "values": False}, softcap=4.0, qk_norm=True),
    4,
  ),
  "relative_own_sandwich": (
    Design(
      norm_position="sandwich",
      position={"name": "relative_bias", "shared": False, "buckets": 8, "max_distance": 6},
    ),
    1,
  ),
  "positions_in_turn": (Design(position=("none", {"name": "rope"}), activation="quick_gelu"), 4),
  "chunked_alibi": (Design(position="alibi", core="chunked", softcap=6.0), 2),
  "local_relative": (
    Design(position={"name": "relative_bias", "bidirectional": True}, core="local", windows=(3,)),
    4,
  ),
}


def position_schemes(designs):
  """Return the position schemes of some designs."""
  positions = []
  for design in designs:
    position = design.position
    positions += position if isinstance(position, tuple) else (position,)
  return positions


# A scheme that no design above has is tested with its defaults.
LISTED = {
  p if isinstance(p, str) else p["name"]
  for p in position_schemes(design for design, _ in DESIGNS.values())
}
NEW = sorted(set(slots.names(positions)) - LISTED)
DESIGNS |= {f"new_{name}": (Design(position=name), 2) for name in NEW}

# Designs for encoder-decoders, where the two stacks differ.
ENCODER_DECODER_DESIGNS = (
  "pre_relative_shared",
  "post_sinusoidal",
  "deepnorm_learned",
  "shaw_post",
  "relative_own_sandwich",
  "alibi_mpt_turns_of_experts",
)
PERIODIC_DESIGNS = (
  "sandwich_rope_softcap_windows",
  "relative_own_sandwich",
  "positions_in_turn",
  "alibi_mpt_turns_of_experts",
)
KINDS = {"bert": tuple(DESIGNS), "mixtral": tuple(DESIGNS), "t5": ENCODER_DECODER_DESIGNS}


def cases(chosen=KINDS, extra_cases=()):
  """Return a mark that parametrizes a test by designs of families.

  Designs that two families share alternate between them in `make test`; `make test-more` has the
  other pairs, and `extra_cases`.
  """
  listed = []
  for family, names in chosen.items():
    for position, name in enumerate(names):
      design, kv_heads = DESIGNS[name]
      case = families.design_case(family, name, design)
      dims = dataclasses.replace(case.variant.dims, kv_heads=kv_heads)
      case = dataclasses.replace(case, variant=dataclasses.replace(case.variant, dims=dims))
      is_even = position % 2 == 0
      if family == "t5":
        is_fast = is_even and name not in extra_cases
      elif family == "bert":
        is_fast = not is_even
      else:
        is_fast = is_even
      marks = [] if is_fast or name in NEW else pytest.mark.more
      listed.append(pytest.param(case, id=case.name, marks=marks))
  return pytest.mark.parametrize("case", listed)


def test_every_choice_is_in_a_design():
  designs = [design for design, _ in DESIGNS.values()]
  chosen = {
    field.name: {repr(getattr(d, field.name)) for d in designs}
    for field in dataclasses.fields(Design)
  }
  del chosen["quantization"]  # see test_quantized_families.py
  for values in chosen.values():
    assert len(values) > 1, [n for n, v in chosen.items() if len(v) < 2]
  assert {d.norm for d in designs} == set(NORMS)
  assert {d.activation for d in designs} == set(ACTIVATIONS)
  assert {d.norm_position for d in designs} == {"pre", "post", "sandwich", "deepnorm"}
  specs = position_schemes(designs)
  for name in LISTED:
    used = {key for p in specs if isinstance(p, dict) and p["name"] == name for key in p}
    make = slots.find("position", name, positions, "make")
    keys = {
      key for key, p in inspect.signature(make).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    assert keys <= used | {"interleaved"}, (name, keys - used)


@cases()
def test_every_design_has_the_properties_of_families(case):
  for check in CHECKS:
    check(case)


@cases({"t5": PERIODIC_DESIGNS}, extra_cases=PERIODIC_DESIGNS[1:])
def test_loop_with_full_remat_equals_the_scan(case):
  assert_same(
    families.value_and_gradients(case, **{**FORMS[0], "remat": "full"}),
    families.plain_value_and_gradients(case),
  )


def abstract_block(design, **options):
  """Return (a builder of stacks of width 64, an abstract block of it)."""
  builder = StackBuilder(design, Dims(64, 4, 4, 16, 256, 2), causal=False, **options)
  return builder, jax.eval_shape(lambda: builder.block(nnx.Rngs(0)))


def test_kernel_scales_multiply_the_initial_variance():
  _, block = abstract_block(Design(kernel_scales=(0.1, 0.2, 0.3, 0.4)))
  scales = {
    name: p.stddev**2 for name, p in params.named_params(block).items() if name.endswith("kernel")
  }
  attention = dict.fromkeys(("query", "key", "value"), 0.1 / 64) | {"out": 0.2 / 64}
  expected = {f"self_attention/layer/{n}/kernel": v for n, v in attention.items()}
  expected |= {"mlp/layer/wi/kernel": 0.3 / 64, "mlp/layer/wo/kernel": 0.4 / 256}
  assert scales == pytest.approx(expected)
  with pytest.raises(UserError, match="kernel_scales: found .*, expected four numbers"):
    Design(kernel_scales=(0.1,))


def test_kernels_of_mpt_are_initialised_as_in_llm_foundry():
  """The defaults of `MPTConfig`: `kaiming_normal_` with ReLU's gain, and `init_div_is_residual`."""

  def make(key):
    return mpt.Model(nnx.Rngs(params=key), variant="7b")

  named = params.named_params(jax.eval_shape(make, jax.random.key(0)))
  stddevs = {n.removeprefix("decoder/blocks/"): p.stddev for n, p in named.items() if p.stddev}
  kernel = (2 / 4096) ** 0.5
  wo = (2 / 16_384) ** 0.5
  expected = {f"self_attention/layer/{n}/kernel": kernel for n in ("query", "key", "value")}
  expected |= {
    "self_attention/layer/out/kernel": kernel / 8,
    "mlp/layer/wi/kernel": kernel,
    "mlp/layer/wo/kernel": wo / 8,
  }
  assert stddevs == pytest.approx(expected | {"embed/table": kernel})


@pytest.mark.parametrize("variant", ["transformer-base", "transformer-big"])
def test_kernels_of_the_transformer_are_initialised_as_in_tensor2tensor(variant):
  """See `transformer_base_v1`: `uniform_unit_scaling` by fan_avg, and N(0, 1/D) for the table."""

  def make(key):
    return transformer.Model(nnx.Rngs(params=key), variant=variant)

  named = params.named_params(jax.eval_shape(make, jax.random.key(0)))
  D = transformer.VARIANTS[variant].dims.embed
  kernels = {n: p for n, p in named.items() if "kernel" in n}
  for name, kernel in kernels.items():
    fans = (D, 4 * D) if "/mlp/" in name else (D, D)
    assert kernel.stddev == pytest.approx((2 / sum(fans)) ** 0.5), name
  assert len(kernels) == 6 + 10
  assert named["embed/table"].stddev == D**-0.5


def test_tables_of_gpt_are_initialised_as_in_the_authors_code():
  """See `wpe` and `wte` in model.py of openai/gpt-2.

  In train.py of openai/finetune-transformer-lm, one table contains both.
  """
  for variant, deviation in {"gpt1": 0.02, "gpt2": 0.01, "gpt3-small": 0.01}.items():

    def make(key):
      return gpt.Model(nnx.Rngs(params=key), variant=variant)

    named = params.named_params(jax.eval_shape(make, jax.random.key(0)))
    assert named["inputs/position/table"].stddev == deviation
    assert named["embed/table"].stddev == 0.02


@pytest.mark.parametrize("experts", [None, Experts(experts=2, top_k=1)])
def test_sublayers_in_no_dropout_have_no_dropout(experts):
  for excluded in ((), ("inputs", "mlp")):
    builder, block = abstract_block(Design(no_dropout=excluded, experts=experts), dropout_rate=0.5)
    rates = {name: getattr(block, name).dropout.rate for name in block.names}
    rates["inputs"] = builder.inputs(nnx.Rngs(0)).dropout.rate
    expected = {name: 0.0 if {"moe": "mlp"}.get(name, name) in excluded else 0.5 for name in rates}
    assert rates == expected
    assert block.self_attention.dropout.rate == 0.5
