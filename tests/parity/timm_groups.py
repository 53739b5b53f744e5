"""The parameter groups of timm: rates under layer decay, and the parameters without weight decay.

Run as a program to write `tests/golden/timm_groups.json`, which tests compare with where timm is
missing.
"""

import json
import pathlib

from tests import topics

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "timm_groups.json"
DECAY = 0.75
# Our variant -> timm's model, and its blocks where they are not timm's.
MODELS = {
  ("vit", "vit-b16"): ("vit_base_patch16_224", None),
  ("swin", "swin-t"): ("swin_tiny_patch4_window7_224", None),
  ("convnext", "convnext-t"): ("convnext_tiny", None),
  ("resnet", "resnet-50-group"): ("resnet50", None),
} | topics.cases("TIMM_GROUPS")


def groups(name: str, blocks: list | None) -> dict[str, tuple[float, bool]]:
  """Return (share of the rate, whether weights decay) of every parameter of a model of timm."""
  import timm
  import timm.optim

  model = timm.create_model(name)
  if blocks is not None:
    stem = model.group_matcher()["stem"]
    model.group_matcher = lambda coarse=False: {"stem": stem, "blocks": blocks}
  undecayed = getattr(model, "no_weight_decay", tuple)()  # convolutional models name none
  parameter_groups = timm.optim.param_groups_layer_decay(
    model, weight_decay=1.0, no_weight_decay_list=undecayed, layer_decay=DECAY
  )
  names = {id(parameter): name for name, parameter in model.named_parameters()}
  settings = {}
  for group in parameter_groups:
    for parameter in group["params"]:
      rate_share = round(group["lr_scale"], 6)
      settings[names[id(parameter)]] = (rate_share, bool(group["weight_decay"]))
  return settings


def golden() -> dict[str, dict[str, tuple[float, bool]]]:
  """Return the groups of every model, by timm's name."""
  return {timm_name: groups(timm_name, blocks) for timm_name, blocks in MODELS.values()}


def text(groups_by_model: dict[str, dict[str, tuple[float, bool]]]) -> str:
  """Return JSON with one parameter a line."""
  models = []
  for model, settings in groups_by_model.items():
    lines = [f"{json.dumps(name)}: {json.dumps(pair)}" for name, pair in sorted(settings.items())]
    models.append(f"{json.dumps(model)}: {{\n" + ",\n".join(lines) + "\n}")
  return "{" + ",\n".join(models) + "}\n"


if __name__ == "__main__":
  GOLDEN.write_text(text(golden()))
