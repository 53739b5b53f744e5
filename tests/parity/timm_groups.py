"""The parameter groups of timm: rates under layer decay, and the parameters without weight decay.

Run as a program to write `tests/golden/timm_groups.json`, which tests compare with where timm is
missing.
"""

import json
import pathlib

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "timm_groups.json"
DECAY = 0.75
# Our variant -> timm's model. timm's groups of MViT are whole stages; the authors' are blocks, as
# here.
MODELS = {
  ("vit", "vit-b16"): ("vit_base_patch16_224", None),
  ("swin", "swin-t"): ("swin_tiny_patch4_window7_224", None),
  ("convnext", "convnext-t"): ("convnext_tiny", None),
  ("resnet", "resnet-50-group"): ("resnet50", None),
  ("mvit", "mvit-v2-s"): (
    "mvitv2_small",
    [(r"^stages\.(\d+)\.blocks\.(\d+)", None), (r"^norm", (99999,))],
  ),
}


def groups(name: str, blocks: list | None) -> dict[str, tuple[float, bool]]:
  """Return (share of the rate, whether weights decay) of every parameter of a model of timm."""
  import timm
  import timm.optim

  model = timm.create_model(name)
  if blocks is not None:
    stem = model.group_matcher()["stem"]
    model.group_matcher = lambda coarse=False: {"stem": stem, "blocks": blocks}
  undecayed = getattr(model, "no_weight_decay", tuple)()  # convolutional models name none
  found = timm.optim.param_groups_layer_decay(
    model, weight_decay=1.0, no_weight_decay_list=undecayed, layer_decay=DECAY
  )
  names = {id(p): n for n, p in model.named_parameters()}
  return {
    names[id(p)]: (round(g["lr_scale"], 6), bool(g["weight_decay"]))
    for g in found
    for p in g["params"]
  }


def golden() -> dict[str, dict[str, tuple[float, bool]]]:
  return {timm_name: groups(timm_name, blocks) for timm_name, blocks in MODELS.values()}


def text(found: dict[str, dict[str, tuple[float, bool]]]) -> str:
  """Return JSON with one parameter a line."""
  rows = {
    name: [f"{json.dumps(n)}: {json.dumps(v)}" for n, v in sorted(one.items())]
    for name, one in found.items()
  }
  models = [f"{json.dumps(name)}: {{\n" + ",\n".join(its) + "\n}" for name, its in rows.items()]
  return "{" + ",\n".join(models) + "}\n"


if __name__ == "__main__":
  GOLDEN.write_text(text(golden()))
