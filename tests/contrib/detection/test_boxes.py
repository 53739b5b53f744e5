"""Boxes: from VOC, COCO and TFDS the same, what is left out is counted, and augmentations move them
with the pixels."""

import io
import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from t5x_like.contrib.detection.data import boxes
from t5x_like.contrib.detection.data.box_augmentations import crop, flip, resize, scale_jitter
from t5x_like.corpora.sources import open_source
from t5x_like.data import loader, task
from t5x_like.data.augmentations import chain
from t5x_like.errors import UserError
from t5x_like.quiet_tensorflow import tf

Y = 40
X = 60
GOOD = [("cell", (4, 6, 16, 30)), ("dot", (20, 10, 38, 58))]  # ymin, xmin, ymax, xmax


def picture(boxes=GOOD, y=Y, x=X) -> bytes:
  """A PNG, black but for its boxes: the first is red, the second green."""
  image = np.zeros((y, x, 3), np.uint8)
  for channel, (_, (y0, x0, y1, x1)) in enumerate(boxes[:2]):
    image[y0:y1, x0:x1, channel] = 255
  file = io.BytesIO()
  Image.fromarray(image).save(file, "PNG")
  return file.getvalue()


def xml(boxes, y=Y, x=X) -> str:
  objects = ""
  for name, (y0, x0, y1, x1) in boxes:
    corners = f"<xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
    objects += f"<object><name>{name}</name><bndbox>{corners}</bndbox></object>"
  size = f"<size><width>{x}</width><height>{y}</height><depth>3</depth></size>"
  return f"<annotation>{size}{objects}</annotation>"


def voc(root, images: dict[str, tuple], lists: dict[str, list[str]] = {}):
  for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
    (root / folder).mkdir(parents=True, exist_ok=True)
  for name, (data, text) in images.items():
    (root / "Annotations" / f"{name}.xml").write_text(text)
    (root / "JPEGImages" / f"{name}.png").write_bytes(data)
  for name, members in lists.items():
    (root / "ImageSets" / "Main" / f"{name}.txt").write_text(
      "".join(f"{member}\n" for member in members)
    )
  return f"voc:{root}"


def coco(root, boxes, **more) -> str:
  (root / "annotations").mkdir(parents=True)
  (root / "train").mkdir()
  (root / "train" / "1.png").write_bytes(picture())
  names = {"dot": 7, "cell": 3}
  annotations = [
    {"id": n, "image_id": 11, "category_id": names[name], "bbox": [x0, y0, x1 - x0, y1 - y0]} | more
    for n, (name, (y0, x0, y1, x1)) in enumerate(boxes)
  ]
  images = [{"id": 11, "file_name": "1.png", "height": Y, "width": X}]
  content = {
    "images": images,
    "annotations": annotations,
    "categories": [{"id": i, "name": n} for n, i in names.items()],
  }
  (root / "annotations" / "instances_train.json").write_text(json.dumps(content))
  return f"coco:train={root}/annotations/instances_train.json"


def tfds_source(root) -> str:
  from t5x_like.quiet_tensorflow import tfds

  with tfds.core.registered.skip_registration():

    class Cells(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.0.0")

      def _info(self):
        one = {
          "bbox": tfds.features.BBoxFeature(),
          "label": tfds.features.ClassLabel(names=["cell", "dot"]),
        }
        features = {"image": tfds.features.Image(), "objects": tfds.features.Sequence(one)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

      def _split_generators(self, manager):
        return {"train": self._generate_examples()}

      def _generate_examples(self):
        box = lambda y0, x0, y1, x1: tfds.features.BBox(y0 / Y, x0 / X, y1 / Y, x1 / X)  # noqa: E731
        objects = [{"bbox": box(*edges), "label": name} for name, edges in GOOD]
        yield 0, {"image": io.BytesIO(picture()), "objects": objects}

    tfds.disable_progress_bar()
    Cells(data_dir=root).download_and_prepare()
  return "tfds:cells"


def built(source, folder, **arguments):
  options = dict(
    resolution=64, shortest=64, boxes=4, augmentations=(), mean=(0.0,), std=(1.0,), split="train"
  )
  return task.build(
    "object_detection", source=source, cache=str(folder / "cache"), **options | arguments
  )


@pytest.mark.parametrize("form", ["voc", "coco", "tfds"])
def test_every_form_gives_the_same_boxes(form, tmp_path):
  source = {
    "voc": lambda: voc(tmp_path / "voc", {"a": (picture(), xml(GOOD))}),
    "coco": lambda: coco(tmp_path / "coco", GOOD),
    "tfds": lambda: tfds_source(tmp_path),
  }[form]()
  built_task = built(source, tmp_path, data_dir=str(tmp_path))
  assert [built_task.classes[n] for n in built_task.boxes.labels] == [
    "cell",
    "dot",
  ] and not built_task.boxes.left_out
  assert built_task.num_examples == 1 and len(built_task.classes) == (8 if form == "coco" else 2)
  np.testing.assert_allclose(
    built_task.boxes.boxes * [Y, X, Y, X], [edges for _, edges in GOOD], atol=1e-4
  )
  np.testing.assert_allclose(built_task.boxes.areas, [12 * 24, 18 * 48], rtol=1e-5)
  (batch,) = loader.eval_batches(built_task, batch_size=1)
  first = [3, 7] if form == "coco" else [0, 1]  # COCO's are numbered by their ids
  assert batch["box_labels"].tolist() == [[*first, -1, -1]] and not batch["boxes"][0, 2:].any()
  assert batch["image_size"].tolist() == [[43, 64]] and not batch["image"][0, 43:].any()
  for channel in (0, 1):  # the boxes are where their colours are
    y0, x0, y1, x1 = np.round(batch["boxes"][0, channel] * [43, 64, 43, 64]).astype(int)
    assert batch["image"][0, y0 + 1 : y1 - 1, x0 + 1 : x1 - 1, channel].min() > 0.9
    outside = batch["image"][0, :, :, channel].copy()
    outside[max(y0 - 1, 0) : y1 + 1, max(x0 - 1, 0) : x1 + 1] = 0
    assert outside.max() < 0.1


def test_bad_boxes_are_left_out_and_counted_and_bad_images_skipped(tmp_path, capsys):
  odd = [
    ("cell", (5, 5, 5, 20)),
    ("cell", (9, 9, 4, 20)),
    ("dot", (50, 5, 60, 9)),
    ("dot", (30, 50, 55, 70)),
    *GOOD,
  ]
  images = {
    "a": (picture(), xml(odd)),
    "broken": (picture()[:-300], xml(GOOD)),
    "none": (picture(), xml([])),
    "pixel": (picture([], 1, 1), xml([("dot", (0, 0, 1, 1))], 1, 1)),
    "unsized": (picture(), xml(GOOD, 0, 0)),
  }
  source = voc(tmp_path / "voc", images)
  (tmp_path / "voc" / "Annotations" / "gone.xml").write_text(xml(GOOD))
  built_task = built(source, tmp_path)
  out = capsys.readouterr().out
  assert (
    built_task.num_examples == 4
    and "not a readable image" in out
    and ("1 records skipped (no image of that") in out
  )
  assert built_task.boxes.left_out == {
    "boxes without area": 2,
    "boxes outside of their image": 1,
    "boxes cut off at the border": 1,
  }
  assert "1 boxes outside of their image" in out
  np.testing.assert_allclose(
    built_task.boxes.boxes[built_task.boxes.slice_of_image(0)][0] * [Y, X, Y, X],
    [30, 50, 40, 60],
    atol=1e-4,
  )
  assert np.diff(built_task.boxes.ends, prepend=0).tolist() == [3, 0, 1, 2]
  (batch,) = loader.eval_batches(built_task, batch_size=4)
  assert batch["image_size"][2].tolist() == [64, 64] and np.isfinite(batch["image"]).all()
  np.testing.assert_allclose(
    batch["boxes"][3], batch["boxes"][0][[1, 2, 3, 3]] * [[1], [1], [0], [0]], atol=1e-5
  )


def test_a_masked_autoencoder_learns_from_images_with_boxes(tmp_path):
  source = voc(tmp_path / "voc", {"a": (picture(), xml(GOOD)), "b": (picture([]), xml([]))})
  arguments = dict(
    source=source, cache=str(tmp_path / "cache"), resolution=16, patch=4, augmentations=()
  )
  built_task = task.build("masked_images", "train", label_field=None, **arguments)
  assert built_task.num_examples == 2 and built_task.labels is None and not built_task.classes
  batch = next(loader.train_batches(built_task, batch_size=2, seed=0))
  assert batch["visible_patches"].shape == (2, 4) and batch["image"].shape == (2, 16, 16, 3)
  with pytest.raises(UserError, match="found no field 'label' among image, objects"):
    task.build("masked_images", "train", **arguments)


@pytest.mark.parametrize(("side", "width"), [("", (36, 40)), ("10@", (10, 10)), ("99@", (40, 40))])
def test_objects_are_labelled_images_of_the_square_around_them(side, width, tmp_path):
  # without area; across the border
  odd = [*GOOD, ("cell", (5, 5, 5, 20)), ("dot", (30, 50, 55, 70))]
  images = {"a": (picture(), xml(odd)), "broken": (b"?", xml(GOOD))}
  source = open_source("objects:" + side + voc(tmp_path / "voc", images))
  actual = list(source.records("train"))
  assert (
    source.classes("label") == ("cell", "dot")
    and source.name == "voc_objects"
    and source.splits == ("train",)
  )
  assert [one["label"] for _, one in actual[:-1]] == [
    "cell",
    "dot",
    "dot",
  ] and "not a readable" in actual[-1][1].reason
  for (where, one), wide, channel in zip(actual, width, (0, 1)):
    pixels = np.asarray(Image.open(io.BytesIO(one["image"])))
    assert pixels.shape == (wide, wide, 3) and where.endswith(f", object {channel}")
    lit = pixels[..., channel] > 128
    y0, x0, y1, x1 = GOOD[channel][1]
    assert abs(lit.sum() - min(wide, y1 - y0) * min(wide, x1 - x0)) <= 0.1 * lit.size
  built_task = task.build(
    "image_classification",
    "train",
    source="objects:" + side + voc(tmp_path / "voc", images),
    cache=str(tmp_path / "cache"),
    resolution=8,
  )
  assert built_task.num_examples == 3 and built_task.labels.tolist() == [0, 1, 1]


def test_crowds_are_kept_but_not_learned(tmp_path):
  built_task = built(coco(tmp_path / "coco", GOOD, iscrowd=1, area=7.0), tmp_path)
  (batch,) = loader.eval_batches(built_task, batch_size=1)
  assert (
    (batch["box_labels"] == -1).all()
    and built_task.boxes.crowds.all()
    and built_task.boxes.areas.tolist() == [7.0, 7.0]
  )


def test_places_take_memory_only_in_batches(tmp_path):
  """Rows are as wide as asked for; tables of all images are as wide as the fullest image needs."""
  source = coco(tmp_path / "coco", GOOD)
  few, many = ((built(source, tmp_path, boxes=number)) for number in (2, 9))
  (narrow,), (wide,) = (loader.eval_batches(built_task, batch_size=1) for built_task in (few, many))
  np.testing.assert_array_equal(wide["boxes"][:, :2], narrow["boxes"])
  assert wide["boxes"].shape == (1, 9, 4) and (wide["boxes"][:, 2:] == 0).all()
  assert (wide["box_labels"][:, 2:] == -1).all() and (narrow["box_labels"] >= 0).all()
  assert built(source, tmp_path, boxes=2**24 + 1).features["boxes"].shape == (2**24 + 1, 4)
  assert many.boxes.pad_learned(2**30)[0].shape == (1, 2, 4)


def test_splits_of_voc(tmp_path):
  # brackets are a pattern elsewhere
  images = {name: (picture(), xml(GOOD)) for name in ("a", "b", "my c")}
  source = voc(
    tmp_path / "[1]" / "voc", images, {"train": ["a 1", "my c"], "val": ["b"], "dot_train": ["a"]}
  )
  opened = open_source(source)
  assert opened.splits == ("train", "validation") and opened.name == "voc"
  assert [where[-5] for where, _ in opened.records("train")] == ["a", "c"]
  lists = f"voc:train={tmp_path}/[1]/voc/ImageSets/Main/val.txt,test={tmp_path}/[1]/voc"
  assert [len(list(open_source(lists).records(split))) for split in ("train", "test")] == [1, 3]


def test_voc_in_any_letter_case_and_difficult_objects_are_neither_asked_for_nor_punished(tmp_path):
  difficult = xml(GOOD).replace("</name>", "</name><difficult>1</difficult>", 1)
  voc(
    tmp_path / "voc",
    {"a": (picture(), difficult), "b": (picture(), xml(GOOD))},
    {"val": ["a", "b"]},
  )
  (tmp_path / "voc" / "ImageSets" / "Main").rename(tmp_path / "voc" / "ImageSets" / "main")
  for folder in ("Annotations", "JPEGImages", "ImageSets"):
    (tmp_path / "voc" / folder).rename(tmp_path / "voc" / folder.lower())
  (tmp_path / "voc" / "annotations" / "b.xml").rename(tmp_path / "voc" / "annotations" / "b.XML")
  (tmp_path / "voc" / "Images").mkdir()  # another name of the folder
  (tmp_path / "voc" / "jpegimages" / "b.png").rename(tmp_path / "voc" / "Images" / "b.png")
  for source, split in (
    (f"voc:{tmp_path}/voc", "validation"),
    (f"voc:test={tmp_path}/voc", "test"),
  ):
    built_task = built(source, tmp_path, split=split)
    assert built_task.num_examples == 2 and built_task.boxes.difficult.tolist() == [
      True,
      False,
      False,
      False,
    ]
  assert (built(source, tmp_path, split="test").boxes.pad_learned(9)[1] >= 0).sum(1).tolist() == [
    1,
    2,
  ]
  notes, _ = boxes.make_notes(
    SimpleNamespace(classes=lambda field: ("cell",)), "objects", "image", ()
  )
  tfds = {
    "bbox": np.tile([0.0, 0, 0.5, 1], (2, 1)),
    "label": ["cell"] * 2,
    "is_difficult": np.array([False, True]),
  }
  kept = notes.make({"image": picture(), "objects": tfds}, "a record")
  assert kept["difficult"].tolist() == [False, True] and not kept["crowds"].any()


def tabled(
  root, rows: list[str], header="filename,width,height,class,xmin,ymin,xmax,ymax", name="boxes.csv"
) -> str:
  (root / "pictures").mkdir(parents=True, exist_ok=True)
  for stem in "ab":
    (root / "pictures" / f"{stem}.png").write_bytes(picture())
  (root / name).write_text("\n".join([header, *rows]) + "\n")
  return f"boxes:{root}/{name}@{root}/pictures"


def test_boxes_on_turned_photographs_stay_on_their_pixels(tmp_path):
  file = io.BytesIO()
  tag = Image.Exif()
  tag[0x112] = 6  # to be turned right
  Image.open(io.BytesIO(picture())).transpose(Image.Transpose.ROTATE_90).save(file, "PNG", exif=tag)
  stored = [(name, (X - x1, y0, X - x0, y1)) for name, (y0, x0, y1, x1) in GOOD]
  texts = {
    "seen": xml(GOOD),
    "stored": xml(stored, X, Y),
    "without": xml(GOOD).replace("<width>60", "<width>0"),
  }
  built_task = built(
    voc(tmp_path / "voc", {name: (file.getvalue(), text) for name, text in texts.items()}), tmp_path
  )
  assert built_task.boxes.pixels.tolist() == [[Y, X], [X, Y], [Y, X]]
  batch = next(loader.eval_batches(built_task, batch_size=3))
  for n in range(3):
    for label, (y0, x0, y1, x1) in enumerate(
      batch["boxes"][n, :2] * np.tile(batch["image_size"][n], 2)
    ):
      pixels = batch["image"][n, round(y0) : round(y1), round(x0) : round(x1), label]
      assert pixels.mean() > 0.95 and abs(pixels.sum() - batch["image"][n, ..., label].sum()) < 40


def test_boxes_from_a_table_are_those_of_voc(tmp_path):
  voc_boxes = built(voc(tmp_path / "voc", {"a": (picture(), xml(GOOD))}), tmp_path).boxes
  rows = [f"a.png,{X},{Y},{name},{x0},{y0},{x1},{y1}" for name, (y0, x0, y1, x1) in GOOD]
  from_table = built(tabled(tmp_path / "one", [*rows, f"b.png,{X},{Y},,,,,"]), tmp_path)
  assert (
    from_table.num_examples == 2
    and from_table.classes == ("cell", "dot")
    and from_table.boxes.ends.tolist() == [2, 2]
  )
  np.testing.assert_allclose(from_table.boxes.boxes, voc_boxes.boxes, atol=1e-6)
  np.testing.assert_allclose(from_table.boxes.areas, voc_boxes.areas, rtol=1e-5)
  shares = [
    f"a.1\t{name}\t{x0 / X}\t{x1 / X}\t{y0 / Y}\t{y1 / Y}" for name, (y0, x0, y1, x1) in GOOD
  ]
  header = "ImageID\tLabelName\tXMin\tXMax\tYMin\tYMax"
  shares_source = tabled(
    tmp_path / "two", [*shares, "a.1\tdot\t0.5\t1.01\t0.5\t1"], header, "boxes.tsv"
  )
  (tmp_path / "two" / "pictures" / "a.png").rename(tmp_path / "two" / "pictures" / "a.1.PNG")
  actual = built(shares_source, tmp_path).boxes
  np.testing.assert_allclose(actual.boxes, [*voc_boxes.boxes, (0.5, 0.5, 1, 1)], atol=1e-6)
  assert actual.left_out == {"boxes cut off at the border": 1}


@pytest.mark.parametrize(
  "rows, header, words",
  [
    (
      ["a.png,cat,1,2,3"],
      "filename,class,xmin,ymin,xmax",
      "csv:1: .*one for the ymax: ymax, .*, y2",
    ),
    (
      ["a.png,1,1,cat,x,2,3,4"],
      None,
      "boxes.csv:2: found could not convert .*expected numbers for ymin",
    ),
    (
      ["../a.png,1,1,cat,1,2,3,4"],
      None,
      "boxes.csv:2: found the image '../a.png', expected a path below",
    ),
    (["a.png,1"], None, "boxes.csv:2: found 2 columns, expected at least 8"),
    ([], None, "boxes.csv: found no rows"),
  ],
)
def test_a_bad_table_of_boxes_is_one_line(rows, header, words, tmp_path):
  source = tabled(tmp_path, rows, header) if header else tabled(tmp_path, rows)
  with pytest.raises(UserError, match=words):
    built(source, tmp_path)


def test_bad_input_is_one_line(tmp_path):
  source = voc(tmp_path / "voc", {"a": (picture(), xml(GOOD))})
  for arguments, words in (
    (
      {"boxes": 1},
      "config.task.boxes: found 1, but image 0 has 2 boxes; set --config.task.boxes=2",
    ),
    (
      {"classes": ("cell",)},
      "a.xml: found label 'dot' in field 'objects.label', expected one of cell",
    ),
    ({"augmentations": ("flop",)}, "did you mean 'flip'"),
    ({"objects_field": "things"}, "found no field 'things'"),
  ):
    with pytest.raises(UserError, match=words):
      built(source, tmp_path, **arguments)
  (tmp_path / "voc" / "Annotations" / "a.xml").write_text(xml(GOOD)[:-30])
  with pytest.raises(UserError, match="a.xml: cannot be read"):
    built(source, tmp_path)
  with pytest.raises(UserError, match="found nothing there"):
    open_source(f"voc:{tmp_path}/nowhere")
  with pytest.raises(UserError, match="expected COCO's JSON"):
    (tmp_path / "x.json").write_text("{}")
    list(open_source(f"coco:{tmp_path}/x.json").records("train"))
  for number, (wrong, words) in enumerate(
    (
      (
        {"category_id": 99},
        r"image 0: found category_id 99, which is none of \[3, 7\], expected "
        r"file_name",
      ),
      ({"bbox": [1, 2, 3]}, "image 0: found a value of another kind .not enough values"),
      ({"bbox": ["a", 2, 3, 4]}, "image 0: found a value of another kind .could not convert"),
    )
  ):
    with pytest.raises(UserError, match=words):
      list(open_source(coco(tmp_path / f"coco{number}", GOOD, **wrong)).records("train"))


AUGMENTATIONS = {
  "flip": flip.make(probability=0.5),
  "resize": resize.make(48, shortest=(16, 24, 50)),
  "crop": crop.make(probability=0.9, shortest=(30, 40), sides=(12, 30)),
  "centres": crop.make(probability=1.0, shortest=(40,), sides=(12, 30), centres=True),
  "scale_jitter": scale_jitter.make(48, scale=(0.3, 2.0), centres=False),
}


def test_one_row_of_another_unit_is_refused(tmp_path):
  """It made all edges pixels, of which boxes within one vanish."""
  rows = ["a.png,60,40,cell,0.1,0.2,0.5,0.6", "b.png,60,40,cell,6,4,30,16"]
  source = tabled(tmp_path, rows)
  with pytest.raises(
    UserError,
    match=r"found shares of the image \(1 boxes, .* beside pixels "
    r"\(1, such as",
  ):
    list(open_source(source).records("train"))


@pytest.mark.parametrize("wrong", ["11", "ä", 12, -11])
def test_annotations_of_no_image_are_refused_with_their_number(wrong, tmp_path):
  source = coco(tmp_path, GOOD)
  path = tmp_path / "annotations" / "instances_train.json"
  content = json.loads(path.read_text())
  content["annotations"] += [content["annotations"][0] | {"image_id": wrong}] * 2
  path.write_text(json.dumps(content))
  number = len(GOOD)
  kinds = "; the ids of images are a JSON number" if isinstance(wrong, str) else ""
  words = f"2 of {number + 2} annotations are of none of the 1 images, annotation {number} first"
  with pytest.raises(UserError, match=re.escape(f"{words} (image_id {wrong!r}{kinds})")):
    list(open_source(source).records("train"))
  content["annotations"] = content["annotations"][:number]
  content["images"] *= 2
  path.write_text(json.dumps(content))
  with pytest.raises(UserError, match="image 1: found the id 11 a second time"):
    list(open_source(source).records("train"))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_image_that_is_no_file_is_refused(kind, tmp_path):
  source = coco(tmp_path, GOOD)
  image = tmp_path / "train" / "1.png"
  image.unlink()
  if kind == "pipe":
    os.mkfifo(image)
  else:
    image.symlink_to("/dev/zero")
  with pytest.raises(UserError, match=f"1.png: found a {kind}, expected a file"):
    list(open_source(source).records("train"))


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_boxes_move_with_their_pixels(name):
  """The box of a colour is where that colour is, whatever was done; a box that is gone has no
  pixels, or few."""
  step = chain([AUGMENTATIONS[name]])
  image = tf.constant(np.asarray(Image.open(io.BytesIO(picture()))), tf.float32)
  boxes = tf.constant(
    [[e / s for e, s in zip(edges, (Y, X, Y, X))] for _, edges in GOOD], tf.float32
  )
  boxed = (image, tf.concat([boxes, tf.zeros([1, 4])], 0), tf.constant([True, True, False]))
  apply = tf.function(
    lambda u: step.apply(boxed, u), input_signature=[tf.TensorSpec([step.numbers])]
  )
  generator = np.random.default_rng(0)
  shapes = set()
  for _ in range(40):
    out, moved, real = (x.numpy() for x in apply(generator.random(step.numbers, np.float32)))
    y, x = out.shape[:2]
    shapes.add((y, x))
    assert not real[2] and moved.min() >= 0 and moved.max() <= 1
    for channel in (0, 1):
      lit = out[..., channel] > 128
      if not real[channel]:
        assert name == "centres" or lit.sum() <= 2 * max(y, x)
        continue
      y0, x0, y1, x1 = moved[channel] * [y, x, y, x]
      rows = np.flatnonzero(lit.any(1))
      columns = np.flatnonzero(lit.any(0))
      if len(rows) == 0:
        assert (y1 - y0) < 1.01 or (x1 - x0) < 1.01
        continue
      actual = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
      np.testing.assert_allclose([y0, x0, y1, x1], actual, atol=1.01)
  assert len(shapes) > 1 or name == "flip"
  if name in ("resize", "scale_jitter"):
    assert max(max(shape) for shape in shapes) <= 48
