"""The image encoder that attends within windows: Swin Transformer, versions 1 and 2."""

import dataclasses
from typing import Literal

import jax
from flax import nnx

from t5x_like import slots
from t5x_like.architectures.build import resolve_variant
from t5x_like.architectures.design import Design
from t5x_like.architectures.image_encoder import patchify
from t5x_like.architectures.image_stages import Stage, StagedEncoder, StagedVariant
from t5x_like.architectures.windows import PatchMerging, WindowStackBuilder
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.embed import Inputs
from t5x_like.nn.image_positions import Grid
from t5x_like.nn.linear import Linear
from t5x_like.nn.norm import Identity
from t5x_like.resolution import height_and_width
from t5x_like.slots import PositiveInt


@dataclasses.dataclass(frozen=True)
class WindowVariant(StagedVariant):
  """One published size of a Swin Transformer.

  Attributes:
    window: rows and columns of a window; a stage with a smaller grid has one window of that size.
    patch_position: one of `nn.image_positions`, added to the patches; the design's own positions
      are within windows. "none" in published models. "learned_1d" is the absolute position
      embedding of Liu et al. 2021 (arXiv:2103.14030), table 4.
    pretrained_windows: for each stage, the window that its positions were first trained on
      (`log_cpb`), or 0.
    rounding: rounding of halved rows and columns where they limit a window; the number of tokens
      always rounds up.
  """

  window: PositiveInt = 7
  patch_position: str | dict = "none"
  pretrained_windows: tuple[int, ...] = ()
  rounding: Literal["up", "down"] = "up"

  def __post_init__(self):
    super().__post_init__()
    if self.pretrained_windows and len(self.pretrained_windows) != len(self.depths):
      raise UserError(
        f"config.model.pretrained_windows: found {len(self.pretrained_windows)} for "
        f"{len(self.depths)} stages, expected one number for each, or none"
      )

  def stage_window(self, stage: int) -> tuple[int, int]:
    """Return the window of a stage, and the shift of every second layer."""
    window = self.window
    side = min(self.grids[stage].rows, self.grids[stage].columns)
    if self.rounding == "down":
      side = max(1, min(height_and_width(self.resolution)) // self.patch >> stage)
    if window >= side:
      return side, 0
    return window, window // 2


class PatchEmbedding(Linear):
  """Projected patches of images, whose kernel starts as a convolution of PyTorch."""

  def __init__(self, variant: WindowVariant, rngs: nnx.Rngs):
    pixels = variant.patch**2 * variant.channels
    init = params.fan_in_normal(pixels, 3**-0.5)
    super().__init__((pixels, variant.embed), (None, "embed"), init, rngs, bias=True)
    self.variant = variant

  def __call__(self, image_BYXC: jax.Array) -> jax.Array:
    return super().__call__(patchify(image_BYXC, self.variant))


class NormFirstInputs(Inputs):
  """`Inputs` with positions added after the norm, as in Swin Transformer."""

  def embed_positions(self, x_BTD: jax.Array, pos_BT: jax.Array) -> jax.Array:
    return self.position.embed(self.norm(x_BTD), pos_BT)


class WindowEncoder(StagedEncoder):
  """Stages of layers that attend within windows, and patch merging between them.

  Args:
    window, patch_position, pretrained_windows: None for the variant's.
  """

  VARIANT = WindowVariant
  INPUTS = NormFirstInputs
  EDGE_EPSILON = 1e-5  # for the norms of patches, in the authors' code and in every published model

  def __init__(
    self,
    rngs: nnx.Rngs,
    *,
    variant: str | WindowVariant,
    window: PositiveInt | None = None,
    patch_position: str | dict | None = None,
    pretrained_windows: tuple[int, ...] | None = None,
    **options,
  ):
    variant = resolve_variant(
      self.VARIANTS,
      variant,
      window=window,
      patch_position=patch_position,
      pretrained_windows=pretrained_windows,
    )
    super().__init__(rngs, variant=variant, **options)

  def input_design(self) -> Design:
    design = self.variant.design
    position = self.variant.patch_position
    return dataclasses.replace(design, norm_epsilon=self.EDGE_EPSILON, position=position)

  def build_patches(self, rngs: nnx.Rngs) -> PatchEmbedding:
    variant = self.variant
    cells = min(variant.grid.rows, variant.grid.columns)
    if cells < variant.window:
      raise UserError(
        f"config.model.window: images of {variant.resolution} pixels have {cells} patches of "
        f"{variant.patch} in a row, expected at least the window's {variant.window}"
      )
    return PatchEmbedding(variant, rngs)

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    """Build a stage: the merging of patches, except in the first, and layers within windows."""
    variant = self.variant
    window, shift = variant.stage_window(number)
    depths = self.layer_depths(number)
    builder = WindowStackBuilder(
      self._design(number),
      variant.stages[number],
      causal=False,
      grid=Grid(window, window),
      cells=variant.grids[number],
      shift=shift,
      depths=depths,
      **options,
    )
    stack = builder.stack(rngs).without(final_norm=Identity())  # the whole model has one
    entry = self._merging(number, rngs) if number else None
    return Stage(
      entry, stack, remat=options["remat"], end_depths=(depths[0], 0.0), length=window**2
    )

  def _design(self, number: int) -> Design:
    """Return the design of a stage, with the window that its positions were first trained on."""
    design = self.variant.design
    pretrained = self.variant.pretrained_windows
    name, arguments = slots.name_and_arguments("config.model.design.position", design.position)
    if not pretrained or name != "log_cpb":
      return design
    position = {"name": name, **arguments, "pretrained": pretrained[number]}
    return dataclasses.replace(design, position=position)

  def _merging(self, number: int, rngs: nnx.Rngs) -> PatchMerging:
    """Build the merging of the patches of the stage before."""
    variant = self.variant
    design = self.input_design()
    inputs = variant.stages[number - 1].embed
    outputs = variant.stages[number].embed
    norm_first = design.norm_position != "res_post"
    norm = design.make_norm(4 * inputs if norm_first else outputs, rngs)
    return PatchMerging(
      variant.grids[number - 1],
      inputs,
      outputs,
      rngs,
      init=design.kernel_init(4 * inputs),
      norm=norm,
      norm_first=norm_first,
    )
