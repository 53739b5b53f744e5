"""The cases of detection in tests of the core."""

from parity.resnets import BASIC, RESNET

# Recipes that need the topic, in configs/.
RECIPES = ("detr/base.py", "detr/blood_cells.py", "resnet/blood_cells.py")

# tests/data/test_addressing.py
TASKS = {
  "object_detection": [{"images": "digit_scenes", "resolution": 40, "shortest": 32, "boxes": 4}]
}

# tests/test_resume_objectives.py
RESUMED_RECIPES = {"configs/detr/base.py": ()}

# tests/fuzz/test_config.py: whose data take longer to prepare than a case may.
SLOW_RECIPES = {"configs/detr/base.py:debug": "prepares images"}

# tests/corpora/test_sources.py
FILE_SOURCES = {"coco": "images with boxes"}

# tests/test_foreign_inputs.py
FOREIGN_RECORDS = {
  "a coco file": (
    "coco:{0}/rows.json",
    {"images": [{"file_name": "../secret.txt", "height": 1, "width": 1, "id": 1}]},
  ),
  "a coco address": (
    "coco:{0}/rows.json",
    {"images": [{"file_name": "gs://b/x", "height": 1, "width": 1, "id": 1}]},
  ),
  "boxes": ("boxes:{0}/rows.csv", "filename,class,xmin,ymin,xmax,ymax\n../secret.txt,a,0,0,1,1\n"),
}

# tests/parity/cases.py: arguments of its `Case`; their outputs are in tests/golden.
DETR = dict(
  use_timm_backbone=False,
  backbone_config=RESNET | dict(out_features=["stage4"]),
  d_model=16,
  encoder_layers=1,
  decoder_layers=2,
  encoder_ffn_dim=24,
  decoder_ffn_dim=20,
  encoder_attention_heads=4,
  decoder_attention_heads=4,
  num_queries=7,
  num_labels=5,
)
GREY_DETR = dict(
  backbone_config=BASIC | dict(out_features=["stage2"], num_channels=1), num_channels=1, d_model=24
)
BOXES = dict(pred_boxes="boxes")
DETECTOR = dict(
  model="DetrForObjectDetection", config="DetrConfig", kind="detection", outputs=BOXES
)
PARITY = {
  "detr": DETECTOR | dict(values=DETR, size=(97, 131)),
  "detr-grey": DETECTOR | dict(values=DETR | GREY_DETR, size=(35, 29)),
}


def _scored_boxes():
  from tests.contrib.detection import split_case  # opens TensorFlow

  return split_case.CASE


# tests/evals/test_splits.py
SPLIT_CASES = {"detection": _scored_boxes}
