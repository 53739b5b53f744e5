"""Layers of several cores in turn, as in the decoder of Liu et al. 2018 (section 4.2): local attention,
memory-compressed attention, and experts in one layer."""

import dataclasses

import families
import jax
import numpy as np
import pytest
from families import Case
from test_families import check_decoding, check_packing, check_padding, check_sight, same

import more
from t5x_like.architectures.design import Design, Variant
from t5x_like.errors import UserError
from t5x_like.models import llama, roberta
from t5x_like.nn.dims import Dims
from t5x_like.nn.feed_forward import Experts

LOCAL, COMPRESSED = {"name": "local", "window": 3}, {"name": "memory_compressed", "stride": 2}
DESIGN = Design(
  position="rope",
  core=(LOCAL, COMPRESSED, LOCAL, COMPRESSED, LOCAL),
  experts=Experts(experts=4, capacity_factor=4.0),
  experts_every=5,
)
VARIANT = Variant(Dims(16, 4, 2, 4, 32, 5), DESIGN, families.VOCAB, llama.TOKENS)
T_DMCA = Case("llama:t_dmca", "llama", VARIANT)


@pytest.mark.parametrize("check", [check_sight, check_padding, check_packing, check_decoding])
def test_property(check):
  check(T_DMCA)


def test_what_compression_reaches():
  """The first layer sees 3 tokens, the second all whole strides: together everything but the latest odd token."""
  case = dataclasses.replace(
    T_DMCA, name="llama:two", variant=dataclasses.replace(VARIANT, dims=Dims(16, 4, 2, 4, 32, 2))
  )
  design = dataclasses.replace(DESIGN, core=(LOCAL, COMPRESSED), experts=None)
  case = dataclasses.replace(case, variant=dataclasses.replace(case.variant, design=design))
  assert np.array_equal(families.forward(case)["reach"] > 0, np.tri(families.T, dtype=bool))


@pytest.mark.parametrize("way", more.beyond(1, ["sharded", "loop"]))
def test_every_way_of_computing_is_the_same_function_and_every_parameter_is_trained(way):
  plain = families.plain(T_DMCA)
  for name, gradient in plain[1].items():
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, name
  assert {name.split("/")[2] for name in plain[1] if "/core/" in name} == {"self_attention_1", "self_attention_3"}
  assert {name.split("/")[2] for name in plain[1] if "/moe" in name} == {"moe_4"}
  form = {"rules": families.rules(T_DMCA)} if way == "sharded" else {"layers": "loop", "remat": "dots"}
  same(families.value_and_gradients(T_DMCA, **form), plain)


def test_an_encoder_may_have_cores_in_turn_and_what_does_not_fit_is_refused():
  first = next(iter(roberta.VARIANTS.values()))
  design = dataclasses.replace(first.design, core=(LOCAL, {"name": "linformer", "k": 4, "length": 16}))
  case = Case("roberta:turns", "roberta", families.shrunk(dataclasses.replace(first, design=design)))
  assert [
    type(getattr(families.abstract(case).encoder.blocks, f"self_attention_{n}").layer.core).__name__ for n in (0, 1)
  ] == ["Local", "Linformer"]
  for core, layers, words in (
    ((LOCAL, "memory"), 2, "config.model.design.core: found 'memory', expected one of auto"),
    ({"decoder": (LOCAL, {"name": "local", "windw": 3})}, 2, "config.model.design.core.decoder.windw: unknown key"),
    ((LOCAL, COMPRESSED), 5, "repeats every 2 layers, found 5 layers"),
  ):
    changed = dataclasses.replace(VARIANT, dims=Dims(16, 4, 2, 4, 32, layers))
    changed = dataclasses.replace(changed, design=dataclasses.replace(DESIGN, core=core, experts=None))
    with pytest.raises(UserError, match=words):
      jax.eval_shape(lambda: families.abstract(Case(str(core), "llama", changed)))  # noqa: B023
