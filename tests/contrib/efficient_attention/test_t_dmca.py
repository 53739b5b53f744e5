"""Layers take several cores in turn, as in Liu et al. 2018."""

import dataclasses

import jax
import numpy as np
import pytest

from t5x_like.architectures.design import Design, Variant
from t5x_like.contrib.efficient_attention.models import t_dmca
from t5x_like.errors import UserError
from t5x_like.models import llama, roberta
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from tests.models import families
from tests.models.families import Case

LOCAL = {"name": "local", "window": 3}
COMPRESSED = {"name": "memory_compressed", "stride": 2}
DIMS = Dims(16, 4, 2, 4, 32, 2)


def case(name, core, dims=DIMS):
  return Case(
    f"llama:{name}",
    "llama",
    Variant(dims, Design(position="rope", core=core), families.VOCAB, llama.TOKENS),
  )


def test_compression_reaches_all_but_the_latest_odd_token():
  """The first layer sees 3 tokens, the second all complete strides."""
  reach = families.compute_outputs(case("reach", (LOCAL, COMPRESSED)))["reach"]
  assert np.array_equal(reach > 0, np.tri(families.T, dtype=bool))


@pytest.mark.parametrize("experts", [128, 256])
def test_the_layers_have_the_papers_cores(experts):
  names = params.named_params(
    families.abstract(Case("moe", "t_dmca", t_dmca.VARIANTS[f"t-dmca-moe-{experts}"]))
  )
  assert {name.split("/")[2] for name in names if "/core/" in name} == {
    "self_attention_1",
    "self_attention_3",
  }
  kernel = names["decoder/blocks/moe_2/layer/wi"]
  assert kernel.shape == (1, experts, 512, 2048)
  assert not any("moe" in name for name in names if "moe_2" not in name)


def test_an_encoder_may_alternate_cores_and_refuses_others():
  first = next(iter(roberta.VARIANTS.values()))
  design = dataclasses.replace(
    first.design, core=(LOCAL, {"name": "linformer", "k": 4, "length": 16})
  )
  encoder = Case(
    "roberta:turns", "roberta", families.shrink(dataclasses.replace(first, design=design))
  )
  blocks = families.abstract(encoder).encoder.blocks
  assert type(blocks.self_attention_0.layer.core).__name__ == "Local"
  assert type(blocks.self_attention_1.layer.core).__name__ == "Linformer"
  for core, layers, message in (
    ((LOCAL, "memory"), 2, "config.model.design.core: found 'memory', expected one of auto"),
    (
      {"decoder": (LOCAL, {"name": "local", "windw": 3})},
      2,
      "config.model.design.core.decoder.windw: unknown key",
    ),
    ((LOCAL, COMPRESSED), 5, "repeats every 2 layers, found 5 layers"),
  ):
    with pytest.raises(UserError, match=message):
      jax.eval_shape(
        lambda: families.abstract(case(str(core), core, dataclasses.replace(DIMS, layers=layers)))
      )
