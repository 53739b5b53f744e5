"""Object detection as set prediction (DETR), scored as COCO scores it.

The model is a `detector.Detector`. Images come from `sources/` with their `objects`; `data/` keeps
and augments the boxes.
"""
