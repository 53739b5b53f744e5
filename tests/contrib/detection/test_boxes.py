"""Boxes: every form of source gives the same, bad ones are counted, augmentations move them."""

import io
import json
import os

import numpy as np
import pytest
from PIL import Image

from t5x_like.contrib.detection.data import boxes
from t5x_like.contrib.detection.data.box_augmentations import crop, flip, resize, scale_jitter
from t5x_like.corpora.sources import open_source
from t5x_like.data import loader, task
from t5x_like.data.augmentations import chain
from t5x_like.quiet_tensorflow import tf
from tests.refusals import refuses

Y = 40
X = 60
SIZES = np.array([Y, X, Y, X])
OBJECTS = [("cell", (4, 6, 16, 30)), ("dot", (20, 10, 38, 58))]  # ymin, xmin, ymax, xmax
EDGES = np.array([edges for _, edges in OBJECTS])
HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax"


def picture(objects=OBJECTS, y=Y, x=X) -> bytes:
  """Return a PNG, black but for its boxes: the first is red, the second green."""
  image = np.zeros((y, x, 3), np.uint8)
  for channel, (_, (y0, x0, y1, x1)) in enumerate(objects[:2]):
    image[y0:y1, x0:x1, channel] = 255
  file = io.BytesIO()
  Image.fromarray(image).save(file, "PNG")
  return file.getvalue()


def lit_edges(lit_YX) -> list[int]:
  """Return the edges of the box around all true cells."""
  rows = np.flatnonzero(lit_YX.any(axis=1))
  columns = np.flatnonzero(lit_YX.any(axis=0))
  return [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]


def xml(objects=OBJECTS, y=Y, x=X) -> str:
  elements = ""
  for name, (y0, x0, y1, x1) in objects:
    corners = f"<xmin>{x0}</xmin><ymin>{y0}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
    elements += f"<object><name>{name}</name><bndbox>{corners}</bndbox></object>"
  size = f"<size><width>{x}</width><height>{y}</height><depth>3</depth></size>"
  return f"<annotation>{size}{elements}</annotation>"


def write_voc(root, images=None, lists={}) -> str:
  """Write (image, annotation) pairs by name, and lists of names by split; return the source."""
  for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
    (root / folder).mkdir(parents=True, exist_ok=True)
  for name, (image, annotation) in (images or {"a": (picture(), xml())}).items():
    (root / "Annotations" / f"{name}.xml").write_text(annotation)
    (root / "JPEGImages" / f"{name}.png").write_bytes(image)
  for name, members in lists.items():
    (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(members))
  return f"voc:{root}"


def write_coco(root, change=lambda content: None, **fields) -> str:
  """Write one image; `fields` are of all annotations, and `change` is applied to the JSON."""
  (root / "annotations").mkdir(parents=True)
  (root / "train").mkdir()
  (root / "train" / "1.png").write_bytes(picture())
  numbers = {"dot": 7, "cell": 3}
  annotations = []
  for number, (name, (y0, x0, y1, x1)) in enumerate(OBJECTS):
    annotation = {"id": number, "image_id": 11, "category_id": numbers[name]}
    annotations.append(annotation | {"bbox": [x0, y0, x1 - x0, y1 - y0]} | fields)
  content = {
    "images": [{"id": 11, "file_name": "1.png", "height": Y, "width": X}],
    "annotations": annotations,
    "categories": [{"id": number, "name": name} for name, number in numbers.items()],
  }
  change(content)
  path = root / "annotations" / "instances_train.json"
  path.write_text(json.dumps(content))
  return f"coco:train={path}"


def write_tfds(root) -> str:
  from t5x_like.quiet_tensorflow import tfds

  with tfds.core.registered.skip_registration():

    class Cells(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version("1.0.0")

      def _info(self):
        label = tfds.features.ClassLabel(names=["cell", "dot"])
        objects = tfds.features.Sequence({"bbox": tfds.features.BBoxFeature(), "label": label})
        features = tfds.features.FeaturesDict({"image": tfds.features.Image(), "objects": objects})
        return tfds.core.DatasetInfo(builder=self, features=features)

      def _split_generators(self, manager):
        return {"train": self._generate_examples()}

      def _generate_examples(self):
        objects = []
        for name, edges in OBJECTS:
          objects.append({"bbox": tfds.features.BBox(*(edges / SIZES)), "label": name})
        yield 0, {"image": io.BytesIO(picture()), "objects": objects}

    tfds.disable_progress_bar()
    Cells(data_dir=root).download_and_prepare()
  return "tfds:cells"


def write_table(root, rows, header=HEADER, name="boxes.csv") -> str:
  (root / "pictures").mkdir(parents=True, exist_ok=True)
  for stem in "ab":
    (root / "pictures" / f"{stem}.png").write_bytes(picture())
  (root / name).write_text("\n".join([header, *rows]) + "\n")
  return f"boxes:{root}/{name}@{root}/pictures"


def write_pixels(root, *rows) -> str:
  """Write a table of edges in pixels, and further rows."""
  pixels = [f"a.png,{X},{Y},{name},{x0},{y0},{x1},{y1}" for name, (y0, x0, y1, x1) in OBJECTS]
  return write_table(root, [*pixels, *rows])


def write_shares(root, *rows) -> str:
  """Write a table of edges as shares of the image, and further rows; names lack their ending."""
  shares = []
  for name, edges in OBJECTS:
    y0, x0, y1, x1 = edges / SIZES
    shares.append(f"a.1\t{name}\t{x0}\t{x1}\t{y0}\t{y1}")
  header = "ImageID\tLabelName\tXMin\tXMax\tYMin\tYMax"
  source = write_table(root, [*shares, *rows], header, "boxes.tsv")
  (root / "pictures" / "a.png").rename(root / "pictures" / "a.1.PNG")
  return source


def build(source, folder, **arguments):
  options = dict(
    resolution=64, shortest=64, boxes=4, augmentations=(), mean=(0.0,), std=(1.0,), split="train"
  )
  options |= arguments
  return task.build("object_detection", source=source, cache=str(folder / "cache"), **options)


FORMS = {
  "voc": write_voc,
  "coco": write_coco,
  "tfds": write_tfds,
  "pixels": write_pixels,
  "shares": write_shares,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_boxes(form, tmp_path):
  detection_task = build(FORMS[form](tmp_path), tmp_path, data_dir=str(tmp_path))
  stored = detection_task.boxes
  numbers = [3, 7] if form == "coco" else [0, 1]  # COCO's are numbered by their ids
  assert detection_task.num_examples == 1
  assert len(detection_task.classes) == (8 if form == "coco" else 2)
  assert [detection_task.classes[n] for n in stored.labels] == ["cell", "dot"]
  assert not stored.left_out
  np.testing.assert_allclose(stored.boxes * SIZES, EDGES, atol=1e-4)
  np.testing.assert_allclose(stored.areas, [12 * 24, 18 * 48], rtol=1e-5)
  (batch,) = loader.eval_batches(detection_task, batch_size=1)
  assert batch["box_labels"].tolist() == [[*numbers, -1, -1]]
  assert not batch["boxes"][0, 2:].any()
  assert batch["image_size"].tolist() == [[43, 64]]
  assert not batch["image"][0, 43:].any()
  for channel in (0, 1):
    edges = lit_edges(batch["image"][0, :, :, channel] > 0.5)
    np.testing.assert_allclose(batch["boxes"][0, channel] * [43, 64, 43, 64], edges, atol=1)


def test_a_row_of_a_table_without_class_is_an_image_without_boxes(tmp_path):
  stored = build(write_pixels(tmp_path, f"b.png,{X},{Y},,,,,"), tmp_path).boxes
  assert stored.ends.tolist() == [2, 2]


def test_a_share_above_one_is_cut(tmp_path):
  stored = build(write_shares(tmp_path, "a.1\tdot\t0.5\t1.01\t0.5\t1"), tmp_path).boxes
  np.testing.assert_allclose(stored.boxes[2], (0.5, 0.5, 1, 1), atol=1e-6)
  assert stored.left_out == {"boxes cut off at the border": 1}


def test_bad_boxes_are_left_out_and_counted_and_bad_images_skipped(tmp_path, capsys):
  empty = [("cell", (5, 5, 5, 20)), ("cell", (9, 9, 4, 20))]
  outside = ("dot", (50, 5, 60, 9))
  cut = ("dot", (30, 50, 55, 70))
  images = {
    "a": (picture(), xml([*empty, outside, cut, *OBJECTS])),
    "broken": (picture()[:-300], xml()),
    "none": (picture(), xml([])),
    "pixel": (picture([], 1, 1), xml([("dot", (0, 0, 1, 1))], 1, 1)),
    "unsized": (picture(), xml(OBJECTS, 0, 0)),
  }
  source = write_voc(tmp_path / "voc", images)
  (tmp_path / "voc" / "Annotations" / "gone.xml").write_text(xml())
  detection_task = build(source, tmp_path)
  output = capsys.readouterr().out
  for message in ("not a readable image", "1 records skipped (no image of that", "1 boxes outside"):
    assert message in output
  stored = detection_task.boxes
  assert stored.left_out == {
    "boxes without area": 2,
    "boxes outside of their image": 1,
    "boxes cut off at the border": 1,
  }
  assert np.diff(stored.ends, prepend=0).tolist() == [3, 0, 1, 2]
  np.testing.assert_allclose(stored.boxes[0] * SIZES, [30, 50, 40, 60], atol=1e-4)
  (batch,) = loader.eval_batches(detection_task, batch_size=4)
  assert batch["image_size"][2].tolist() == [64, 64]
  assert np.isfinite(batch["image"]).all()
  np.testing.assert_allclose(batch["boxes"][3, :2], batch["boxes"][0, 1:3], atol=1e-5)


def test_a_masked_autoencoder_learns_from_images_with_boxes(tmp_path):
  source = write_voc(tmp_path / "voc", {"a": (picture(), xml()), "b": (picture([]), xml([]))})
  arguments = dict(source=source, cache=str(tmp_path), resolution=16, patch=4, augmentations=())
  image_task = task.build("masked_images", "train", label_field=None, **arguments)
  batch = next(loader.train_batches(image_task, batch_size=2, seed=0))
  assert image_task.labels is None
  assert batch["visible_patches"].shape == (2, 4)
  assert batch["image"].shape == (2, 16, 16, 3)
  with refuses("'label'", "image, objects"):
    task.build("masked_images", "train", **arguments)


@pytest.mark.parametrize(("side", "sides"), [("", (36, 40)), ("10@", (10, 10)), ("99@", (40, 40))])
def test_objects_are_labelled_images_of_the_square_around_them(side, sides, tmp_path):
  empty = ("cell", (5, 5, 5, 20))
  cut = ("dot", (30, 50, 55, 70))
  images = {"a": (picture(), xml([*OBJECTS, empty, cut])), "broken": (b"?", xml())}
  address = "objects:" + side + write_voc(tmp_path / "voc", images)
  source = open_source(address)
  assert source.classes("label") == ("cell", "dot")
  assert source.name == "voc_objects"
  *records, (_, skip) = source.records("train")
  assert "not a readable" in skip.reason
  for channel in (0, 1):
    where, record = records[channel]
    pixels = np.asarray(Image.open(io.BytesIO(record["image"])))
    assert where.endswith(f", object {channel}")
    assert pixels.shape == (sides[channel], sides[channel], 3)
    y0, x0, y1, x1 = EDGES[channel]
    area = min(sides[channel], y1 - y0) * min(sides[channel], x1 - x0)
    lit = pixels[..., channel] > 128
    assert abs(lit.sum() - area) <= 0.1 * lit.size
  options = dict(cache=str(tmp_path / "cache"), resolution=8)
  labels = task.build("image_classification", "train", source=address, **options).labels
  assert labels.tolist() == [0, 1, 1]


def test_crowds_are_kept_but_not_learned(tmp_path):
  detection_task = build(write_coco(tmp_path, iscrowd=1, area=7.0), tmp_path)
  (batch,) = loader.eval_batches(detection_task, batch_size=1)
  assert (batch["box_labels"] == -1).all()
  assert detection_task.boxes.crowds.all()
  assert detection_task.boxes.areas.tolist() == [7.0, 7.0]


def test_empty_places_of_boxes_take_memory_only_in_batches(tmp_path):
  source = write_coco(tmp_path)
  batches = []
  for number in (2, 9):
    detection_task = build(source, tmp_path, boxes=number)
    batches.extend(loader.eval_batches(detection_task, batch_size=1))
  narrow, wide = batches
  np.testing.assert_array_equal(wide["boxes"][:, :2], narrow["boxes"])
  assert wide["boxes"].shape == (1, 9, 4)
  assert not wide["boxes"][:, 2:].any()
  assert (wide["box_labels"][:, 2:] == -1).all()
  assert build(source, tmp_path, boxes=2**24 + 1).features["boxes"].shape == (2**24 + 1, 4)
  assert detection_task.boxes.pad_learned(2**30)[0].shape == (1, 2, 4)


def test_lists_of_voc_are_splits_and_names_may_have_spaces_and_brackets(tmp_path):
  images = dict.fromkeys(("a", "b", "my c"), (picture(), xml()))
  lists = {"train": ["a 1", "my c"], "val": ["b"], "dot_train": ["a"]}
  root = tmp_path / "[1]" / "voc"  # brackets are a pattern elsewhere
  source = open_source(write_voc(root, images, lists))
  assert source.splits == ("train", "validation")
  assert source.name == "voc"
  assert [where[-5] for where, _ in source.records("train")] == ["a", "c"]
  parts = open_source(f"voc:train={root}/ImageSets/Main/val.txt,test={root}")
  assert len(list(parts.records("train"))) == 1
  assert len(list(parts.records("test"))) == 3


def test_folders_of_voc_have_any_letter_case(tmp_path):
  write_voc(tmp_path, dict.fromkeys("ab", (picture(), xml())), {"val": ["a", "b"]})
  (tmp_path / "ImageSets" / "Main").rename(tmp_path / "ImageSets" / "main")
  for folder in ("Annotations", "JPEGImages", "ImageSets"):
    (tmp_path / folder).rename(tmp_path / folder.lower())
  (tmp_path / "annotations" / "b.xml").rename(tmp_path / "annotations" / "b.XML")
  (tmp_path / "Images").mkdir()  # another name of the folder
  (tmp_path / "jpegimages" / "b.png").rename(tmp_path / "Images" / "b.png")
  assert build(f"voc:{tmp_path}", tmp_path, split="validation").num_examples == 2
  assert build(f"voc:test={tmp_path}", tmp_path, split="test").num_examples == 2


def test_difficult_objects_of_voc_are_not_learned(tmp_path):
  difficult = xml().replace("</name>", "</name><difficult>1</difficult>", 1)
  stored = build(write_voc(tmp_path, {"a": (picture(), difficult)}), tmp_path).boxes
  assert stored.difficult.tolist() == [True, False]
  assert stored.pad_learned(9)[1].tolist() == [[1]]


def test_difficult_objects_of_tfds_are_marked():
  class Source:
    def classes(self, field):
      return ("cell",)

  notes, _ = boxes.make_notes(Source(), "objects", "image", ())
  box = [0.0, 0.0, 0.5, 1.0]
  objects = {"bbox": [box, box], "label": ["cell", "cell"], "is_difficult": [False, True]}
  record = notes.make({"image": picture(), "objects": objects}, "a record")
  assert record["difficult"].tolist() == [False, True]
  assert not record["crowds"].any()


def test_boxes_on_turned_photographs_stay_on_their_pixels(tmp_path):
  file = io.BytesIO()
  exif = Image.Exif()
  exif[0x112] = 6  # to be turned right
  image = Image.open(io.BytesIO(picture())).transpose(Image.Transpose.ROTATE_90)
  image.save(file, "PNG", exif=exif)
  stored = [(name, (X - x1, y0, X - x0, y1)) for name, (y0, x0, y1, x1) in OBJECTS]
  annotations = {
    "seen": xml(),
    "stored": xml(stored, X, Y),
    "without": xml().replace("<width>60", "<width>0"),
  }
  images = {name: (file.getvalue(), annotation) for name, annotation in annotations.items()}
  detection_task = build(write_voc(tmp_path, images), tmp_path)
  assert detection_task.boxes.pixels.tolist() == [[Y, X], [X, Y], [Y, X]]
  (batch,) = loader.eval_batches(detection_task, batch_size=3)
  for n in range(3):
    for channel in (0, 1):
      box = batch["boxes"][n, channel] * np.tile(batch["image_size"][n], 2)
      edges = lit_edges(batch["image"][n, :, :, channel] > 0.5)
      np.testing.assert_allclose(box, edges, atol=1)


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ({"boxes": 1}, ("config.task.boxes", "found 1", "--config.task.boxes=2")),
    ({"classes": ("cell",)}, ("a.xml", "'dot'", "objects.label", "cell")),
    ({"augmentations": ("flop",)}, ("'flop'", "'flip'")),
    ({"objects_field": "things"}, ("'things'",)),
  ],
)
def test_bad_arguments_are_refused(arguments, words, tmp_path):
  source = write_voc(tmp_path)
  with refuses(*words):
    build(source, tmp_path, **arguments)


def add_stray_annotations(image_id):
  def change(content):
    content["annotations"] += [content["annotations"][0] | {"image_id": image_id}] * 2

  return {"change": change}


STRAYS = ("instances_train.json", "2 of 4 annotations", "annotation 2")
TWO_UNITS = ["a.png,60,40,cell,0.1,0.2,0.5,0.6", "b.png,60,40,cell,6,4,30,16"]
BAD_TABLES = [
  (["a.png,cat,1,2,3"], "filename,class,xmin,ymin,xmax", ("boxes.csv:1", "ymax")),
  (["a.png,1,1,cat,x,2,3,4"], HEADER, ("boxes.csv:2", "'x'", "ymin")),
  (["../a.png,1,1,cat,1,2,3,4"], HEADER, ("boxes.csv:2", "'../a.png'")),
  (["a.png,1"], HEADER, ("boxes.csv:2", "2 columns")),
  ([], HEADER, ("boxes.csv", "no rows")),
  (TWO_UNITS, HEADER, ("boxes.csv", "shares of the image (1 boxes", "pixels (1,")),
]
BAD_COCO = [
  ({"category_id": 99}, ("image 0", "category_id 99", "[3, 7]")),
  ({"bbox": [1, 2, 3]}, ("image 0", "not enough values")),
  ({"bbox": ["a", 2, 3, 4]}, ("image 0", "'a'")),
  (add_stray_annotations("11"), (*STRAYS, "'11'", "a JSON number")),
  (add_stray_annotations("ä"), (*STRAYS, "'ä'", "a JSON number")),
  (add_stray_annotations(-11), (*STRAYS, "image_id -11)")),
  ({"change": lambda content: content["images"].extend(content["images"])}, ("image 1", "id 11")),
  ({"change": lambda content: content.clear()}, ("instances_train.json", "'images'")),
]


@pytest.mark.parametrize(("rows", "header", "words"), BAD_TABLES)
def test_a_bad_table_of_boxes_is_refused(rows, header, words, tmp_path):
  source = write_table(tmp_path, rows, header)
  with refuses(*words):
    build(source, tmp_path)


@pytest.mark.parametrize(("arguments", "words"), BAD_COCO)
def test_a_bad_file_of_coco_is_refused(arguments, words, tmp_path):
  source = write_coco(tmp_path, **arguments)
  with refuses(*words):
    list(open_source(source).records("train"))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_an_image_that_is_no_file_is_refused(kind, tmp_path):
  source = write_coco(tmp_path)
  image = tmp_path / "train" / "1.png"
  image.unlink()
  if kind == "pipe":
    os.mkfifo(image)
  else:
    image.symlink_to("/dev/zero")
  with refuses("1.png", kind):
    list(open_source(source).records("train"))


def test_a_bad_directory_of_voc_is_refused(tmp_path):
  source = write_voc(tmp_path)
  (tmp_path / "Annotations" / "a.xml").write_text(xml()[:-30])
  with refuses("a.xml"):
    build(source, tmp_path)
  with refuses(f"{tmp_path}/nowhere"):
    open_source(f"voc:{tmp_path}/nowhere")


AUGMENTATIONS = {
  "flip": flip.make(probability=0.5),
  "resize": resize.make(48, shortest=(16, 24, 50)),
  "crop": crop.make(probability=0.9, shortest=(30, 40), sides=(12, 30)),
  "centres": crop.make(probability=1.0, shortest=(40,), sides=(12, 30), centres=True),
  "scale_jitter": scale_jitter.make(48, scale=(0.3, 2.0), centres=False),
}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_boxes_move_with_their_pixels(name):
  """A box that an augmentation leaves out has no pixels, or few."""
  step = chain([AUGMENTATIONS[name]])
  image = tf.constant(np.asarray(Image.open(io.BytesIO(picture()))), tf.float32)
  padded = tf.constant([*(EDGES / SIZES), np.zeros(4)], tf.float32)
  boxed_image = (image, padded, tf.constant([True, True, False]))

  @tf.function(input_signature=[tf.TensorSpec([step.numbers])])
  def augment(numbers):
    return step.apply(boxed_image, numbers)

  generator = np.random.default_rng(0)
  shapes = set()
  for _ in range(40):
    out_YXC, moved, real = map(np.asarray, augment(generator.random(step.numbers, np.float32)))
    y, x, _ = out_YXC.shape
    shapes.add((y, x))
    assert not real[2]
    assert moved.min() >= 0
    assert moved.max() <= 1
    for channel in (0, 1):
      lit = out_YXC[..., channel] > 128
      box = moved[channel] * [y, x, y, x]
      if not real[channel]:
        assert name == "centres" or lit.sum() <= 2 * max(y, x)
      elif lit.any():
        np.testing.assert_allclose(box, lit_edges(lit), atol=1.01)
      else:
        assert min(box[2] - box[0], box[3] - box[1]) < 1.01
  assert len(shapes) > 1 or name == "flip"
  if name in ("resize", "scale_jitter"):
    assert np.max([*shapes]) <= 48
