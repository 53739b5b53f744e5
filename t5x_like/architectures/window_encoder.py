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
    window: side of a square window, in patches; a stage whose grid is smaller has one window of the
      size of the grid.
    patch_position: one of `nn.image_positions`, added to the embedded patches; the design's
      position scheme applies within windows. Published models have "none". "learned_1d" is the
      absolute position embedding of Liu et al. 2021 (arXiv:2103.14030), table 4.
    pretrained_windows: for each stage, the window with which its `log_cpb` positions were first
      trained, or 0.
    rounding: how a stage's grid is halved when it limits the window; the grid of the tokens always
      rounds up.
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
    """Return the window's side in a stage and the shift of every second layer, both in tokens."""
    grid_side = min(self.grids[stage].rows, self.grids[stage].columns)
    if self.rounding == "down":
      pixels_per_token = self.patch * 2**stage
      grid_side = max(1, min(height_and_width(self.resolution)) // pixels_per_token)
    if self.window >= grid_side:
      return grid_side, 0
    return self.window, self.window // 2


class PatchEmbedding(Linear):
  """Project the patches of images, with the initial kernel of PyTorch's convolutions."""

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
    window, patch_position, pretrained_windows: override the variant's field unless None.
  """

  VARIANT = WindowVariant
  INPUTS = NormFirstInputs
  # The epsilon of the norms in patch embedding and merging, in the authors' code and all published
  # models.
  PATCH_NORM_EPSILON = 1e-5

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
    return dataclasses.replace(design, norm_epsilon=self.PATCH_NORM_EPSILON, position=position)

  def build_patches(self, rngs: nnx.Rngs) -> PatchEmbedding:
    variant = self.variant
    grid_side = min(variant.grid.rows, variant.grid.columns)
    if grid_side < variant.window:
      raise UserError(
        f"config.model.window: images of {variant.resolution} pixels have {grid_side} patches of "
        f"{variant.patch} in a row, expected at least the window's {variant.window}"
      )
    return PatchEmbedding(variant, rngs)

  def build_stage(self, number: int, rngs: nnx.Rngs, options: dict) -> Stage:
    """Build a stage: patch merging, except in the first stage, then layers within windows."""
    variant = self.variant
    window, shift = variant.stage_window(number)
    depths = self.layer_depths(number)
    builder = WindowStackBuilder(
      self._stage_design(number),
      variant.stages[number],
      causal=False,
      grid=Grid(window, window),
      cells=variant.grids[number],
      shift=shift,
      depths=depths,
      **options,
    )
    # The encoder has one final norm, after the last stage.
    stack = builder.stack(rngs).without(final_norm=Identity())
    merging = self._build_merging(number, rngs) if number else None
    return Stage(
      merging, stack, remat=options["remat"], end_depths=(depths[0], 0.0), length=window**2
    )

  def _stage_design(self, number: int) -> Design:
    """Return the design of a stage; `log_cpb` positions get the window of their first training."""
    design = self.variant.design
    pretrained = self.variant.pretrained_windows
    name, arguments = slots.name_and_arguments("config.model.design.position", design.position)
    if not pretrained or name != "log_cpb":
      return design
    position = {"name": name, **arguments, "pretrained": pretrained[number]}
    return dataclasses.replace(design, position=position)

  def _build_merging(self, number: int, rngs: nnx.Rngs) -> PatchMerging:
    """Build the layer that merges the previous stage's patches, four by four."""
    variant = self.variant
    design = self.input_design()
    in_width = variant.stages[number - 1].embed
    out_width = variant.stages[number].embed
    norm_first = design.norm_position != "res_post"
    norm = design.make_norm(4 * in_width if norm_first else out_width, rngs)
    return PatchMerging(
      variant.grids[number - 1],
      in_width,
      out_width,
      rngs,
      init=design.kernel_init(4 * in_width),
      norm=norm,
      norm_first=norm_first,
    )
