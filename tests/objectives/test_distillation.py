"""Distillation follows its formulas and never changes the teacher, whatever its family."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from scipy import special

import more
import tests.recipes.nano_image  # noqa: F401 -- the variant that the runs are of
from t5x_like import evaluate, train
from t5x_like.data.features import Feature
from t5x_like.data.images.layout import describe
from t5x_like.errors import UserError
from t5x_like.library.model import load
from t5x_like.models import deit, vit
from t5x_like.nn import params
from t5x_like.nn.dims import Dims
from t5x_like.objectives.classification import Objective as Classification
from t5x_like.objectives.distillation import Objective
from t5x_like.report.writer import read_metrics
from tests.fine_tuning import fine_tuning
from tests.models.families import Case, model
from tests.runs import assert_same_bits, load_tensors
from tools import convert_hf

pytestmark = pytest.mark.runs

NANO = "tests/recipes/nano_image.py"
B = 5
V = 7


def build_small_model(family, head, dims=Dims(16, 4, 4, 4, 32, 2), resolution=8, labels=V):  # noqa: B008 (frozen)
  first = next(iter(family.VARIANTS.values()))
  changed = dict(
    dims=dims, patch=4, resolution=resolution, channels=1, head={"name": head, "labels": labels}
  )
  name = family.__name__.rpartition(".")[2]
  return model(Case(name, name, dataclasses.replace(first, **changed)))


def batch():
  generator = np.random.default_rng(2)
  return {
    "image": generator.standard_normal((B, 8, 8, 1)).astype(np.float32),
    "label": generator.integers(0, V, B).astype(np.int32),
    "other_label": generator.integers(0, V, B).astype(np.int32),
    "label_share": generator.uniform(size=B).astype(np.float32),
    "example_weights": np.array([1, 1, 1, 0.5, 0], np.float32),
  }


def log_softmax(x):
  x = np.asarray(x, np.float64)
  return (
    x
    - x.max(-1, keepdims=True)
    - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))
  )


@pytest.mark.parametrize("student", [deit, vit])
def test_losses_follow_the_paper_and_no_gradient_reaches_the_teacher(student):
  head = "distillation" if student is deit else "image_classification"
  model = build_small_model(student, head)
  data = batch()
  model.reference = build_small_model(vit, "image_classification", Dims(24, 3, 3, 8, 32, 1))
  outputs = {n: np.asarray(x) for n, x in model(data).items()}
  folder_with_student = np.asarray(model.reference(data)["logits"], np.float64)
  class_logits = outputs.get("class_logits", outputs["logits"])
  distillation_logits = outputs.get("distillation_logits", outputs["logits"])
  if student is deit:
    np.testing.assert_allclose(
      outputs["logits"], (class_logits + distillation_logits) / 2, rtol=1e-6
    )
  even = 0.1 / V  # spread over all classes, as torch's and timm's
  target = 0.9 * np.eye(V)[[data["label"], data["other_label"]]] + even
  target = data["label_share"][:, None] * target[0] + (1 - data["label_share"][:, None]) * target[1]
  best = 0.9 + even
  # of a perfect prediction, as everywhere here
  free = best * np.log(best) + (V - 1) * even * np.log(even)
  labels = -(target * log_softmax(class_logits)).sum(-1) + free
  hard = -log_softmax(distillation_logits)[np.arange(B), folder_with_student.argmax(-1)]
  p = log_softmax(folder_with_student / 3)
  q = log_softmax(np.asarray(distillation_logits, np.float64) / 3)
  soft = 9 * (np.exp(p) * (p - q)).sum(-1)
  arrays = params.arrays(model)
  for kind, share, distilled in (("hard", 0.5, hard), ("soft", 0.1, soft)):
    objective = Objective(kind=kind, share=share, temperature=3.0, label_smoothing=0.1)
    run = jax.value_and_grad(
      lambda a, o=objective: o(params.with_arrays(model, a), data), has_aux=True
    )
    (loss, sums), gradients = jax.jit(run)(arrays)
    weights = data["example_weights"]
    assert float(loss) == pytest.approx(
      (weights * ((1 - share) * labels + share * distilled)).sum(), rel=1e-4
    )
    assert float(sums["distillation_loss"]) == pytest.approx((weights * distilled).sum(), rel=1e-4)
    same = outputs["logits"].argmax(-1) == folder_with_student.argmax(-1)
    assert float(sums["agreement"]) == (weights * same).sum()
    assert set(sums) == {
      *Objective.reported_sums,
      "weights",
    }
    assert all((np.abs(g).max() > 0) != n.startswith("reference/") for n, g in gradients.items())


def test_sigmoid_losses_are_means_over_classes_with_both_classes_of_a_mixture():
  model = build_small_model(vit, "image_classification")
  data = batch()
  # the first is all the other's
  data["label_share"] = np.linspace(0, 1, len(data["label"])).astype(np.float32)
  data["other_label"][1] = data["label"][1]
  p = special.expit(np.asarray(model(data)["logits"], np.float64))
  share = data["label_share"][:, None]
  first_class = np.eye(V)[data["label"]]
  second_class = np.eye(V)[data["other_label"]]
  for smoothing in (0.0, 0.2):
    target = np.maximum((share > 0) * first_class, (share < 1) * second_class)
    for smoothed, expected in (
      (target, "loss"),
      ((1 - smoothing) * target + smoothing / V, "total"),
    ):
      row_losses = -(smoothed * np.log(p) + (1 - smoothed) * np.log1p(-p)).mean(-1)
      total, sums = Classification(loss="sigmoid", label_smoothing=smoothing)(model, data)
      actual = total if expected == "total" else sums["loss"]
      assert float(actual) == pytest.approx((row_losses * data["example_weights"]).sum(), rel=1e-5)


@pytest.mark.parametrize(
  ("teacher", "message"),
  [
    (dict(resolution=4), r"config.teacher: is for images of \[4, 4, 1\], found \[8, 8, 1\]"),
    (dict(labels=3), r"config.teacher: found logits \[3\], expected \[7\]"),
  ],
)
def test_a_teacher_of_another_form_is_refused_in_one_line(teacher, message):
  model = build_small_model(vit, "image_classification")
  model.reference = build_small_model(vit, "image_classification", **teacher)
  with pytest.raises(UserError, match=message):
    Objective.check(model, describe(8, 1, False))
  model.reference = model
  with pytest.raises(UserError, match="labels that are classes, found float32"):
    Objective.check(model, describe(8, 1, False) | {"label": Feature((), "float32")})
  with pytest.raises(UserError, match="found share 2.0 and temperature 3.0"):
    Objective(share=2.0)


def run(workdir, cache, *flags) -> int:
  defaults = (
    f"--config.task.cache={cache}",
    "--config.schedule.total_steps=4",
    "--config.checkpoint.every=2",
  )
  steps = ("--config.total_steps=4", "--config.eval_every=4")
  return train.main([f"--config={NANO}", f"--workdir={workdir}", *defaults, *steps, *flags])


STUDENT = (
  "--config.model.name=deit",
  "--config.model.variant=deit-tiny",
  "--config.model.patch=4",
  "--config.model.resolution=16",
  "--config.model.channels=1",
  '--config.model.head={"name": "distillation", "labels": 10}',
  '--config.objective={"name": "distillation", "kind": "soft"}',
  '--config.evals={"image_classification": {}, "loss": {}}',
)


@pytest.fixture(scope="module")
def folder_with_teacher(tmp_path_factory, compiled):
  """Return a folder with a teacher of two steps."""
  folder = tmp_path_factory.mktemp("distillation")
  assert (
    run(folder / "teacher", folder / "cache", "--config.total_steps=2", "--config.evals={}") == 0
  )
  return folder


@pytest.fixture(scope="module")
def folder_with_student(folder_with_teacher):
  """Return the teacher's folder after a student has learned in it for 4 steps."""
  flags = (*STUDENT, f"--config.teacher.workdir={folder_with_teacher}/teacher")
  assert run(folder_with_teacher / "student", folder_with_teacher / "cache", *flags) == 0
  return folder_with_teacher


@pytest.mark.more
def test_the_teacher_keeps_every_bit_and_a_run_resumes_to_the_same_ones(
  folder_with_student, tmp_path, capsys
):
  teacher = load_tensors(folder_with_student / "teacher", 2)
  early = load_tensors(folder_with_student / "student", 2)
  late = load_tensors(folder_with_student / "student", 4)
  copies = [name for name in late if name.startswith("params/reference/")]
  assert len(copies) == sum(name.startswith("params/") for name in teacher)
  for name in copies:
    assert (
      early[name].tobytes()
      == late[name].tobytes()
      == teacher[name.replace("reference/", "")].tobytes()
    )
  assert any(
    early[name].tobytes() != late[name].tobytes()
    for name in late
    if name.startswith("params/encoder")
  )
  assert not any("reference" in name for name in late if not name.startswith("params/"))
  flags = (*STUDENT, f"--config.teacher.workdir={folder_with_student}/teacher")
  assert run(tmp_path, folder_with_student / "cache", *flags, "--config.total_steps=2") == 0
  assert run(tmp_path, folder_with_student / "cache", *flags) == 0
  assert_same_bits(tmp_path, folder_with_student / "student", 4)
  rows = read_metrics(tmp_path)
  metric_names = {name.split("/")[-1] for name in rows[-1]}
  assert {"top1", "distillation_loss", "agreement", "teacher_correct"} <= metric_names
  assert evaluate.main([f"--workdir={tmp_path}", "--evals=loss"]) == 0
  assert (
    run(tmp_path, folder_with_student / "cache", *STUDENT, "--config.teacher.workdir=elsewhere")
    == 2
  )
  assert "config.teacher.workdir: elsewhere is neither a directory here" in capsys.readouterr().err


@pytest.mark.more
def test_a_finished_student_has_no_teacher(folder_with_student, tmp_path):
  student = load(str(folder_with_student / "student"), batch_size=8)
  assert convert_hf.main([f"--input={folder_with_student}/student", f"--output={tmp_path}/hf"]) == 0
  config = json.loads((tmp_path / "hf" / "config.json").read_text())
  assert config["architectures"] == ["DeiTForImageClassificationWithTeacher"]
  assert student.vocabulary.size == 10


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (STUDENT, "config.teacher.workdir: found None, expected the workdir of a run"),
    (("--config.teacher.workdir=x",), "config.teacher: the objective 'classification' has none"),
    (
      (
        *STUDENT,
        "--config.teacher.workdir={folder}/teacher",
        "--config.task.source=folders:train={folder}/classes",
      ),
      "was trained with 10 classes, 0, 1, 2, 3, …, expected the 2 of the data, a, b",
    ),
    (
      (*STUDENT, "--config.teacher.workdir={folder}/teacher", "--config.task.mean=[0.4]"),
      "config.task: found mean [0.4], std [0.5], but the teacher in",
    ),
    (
      (
        *STUDENT,
        '--config.teacher={{"workdir": "{folder}/none", "model": {{"name": "vit", "variant": '
        '"nano"}}}}',
        "--config.model.head.labels=1000",
      ),
      "config.teacher.workdir: found no directory {folder}/none",
    ),
  ],
)
def test_an_impossible_teacher_is_refused_in_one_line(
  flags, message, folder_with_teacher, tmp_path, capsys
):
  from PIL import Image

  for name in "ab":
    (folder_with_teacher / "classes" / name).mkdir(parents=True, exist_ok=True)
    Image.new("L", (16, 16), 40).save(folder_with_teacher / "classes" / name / "1.png")
  teacher_flags = [
    flag.format(folder=folder_with_teacher) if "{folder}" in flag else flag for flag in flags
  ]
  split = ["--config.eval_split=train"] * ("classes" in str(flags))
  assert run(tmp_path, folder_with_teacher / "cache", *teacher_flags, *split) == 2
  error = capsys.readouterr().err.strip()
  assert message.format(folder=folder_with_teacher) in error
  assert "\n" not in error


@pytest.mark.parametrize("source", more.beyond(0, ["hugging_face", "text"]))
def test_published_and_deeper_teachers_teach(source, folder_with_student, tmp_path, capsys):
  """One teacher has published weights; of two text classifiers one is deeper."""
  if source == "hugging_face":
    cache = f"--config.task.cache={folder_with_student}/cache"
    arguments = [f"--input={folder_with_student}/teacher", f"--output={tmp_path}/hf"]
    assert convert_hf.main(arguments) == 0
    teacher_flags = [
      "--input",
      f"{tmp_path}/hf",
      "--output",
      f"{tmp_path}/teacher",
      "--config",
      NANO,
      cache,
    ]
    assert convert_hf.main(teacher_flags) == 0
    flags = (*STUDENT, f"--config.teacher.workdir={tmp_path}/teacher")
    assert run(tmp_path / "student", folder_with_student / "cache", *flags) == 0, (
      capsys.readouterr().err
    )
    assert_same_bits(tmp_path / "student", folder_with_student / "student", 4)
    return
  flags = [f"--config.{flag}" for flag in fine_tuning("classification", tmp_path)]
  defaults = ["--config=configs/roberta/base.py:debug", "--config.evals={}", *flags]
  assert train.main([*defaults, f"--workdir={tmp_path}/teacher"]) == 0, capsys.readouterr().err
  distilled = [
    "--config.objective=" + json.dumps({"name": "distillation"}),
    f"--config.teacher.workdir={tmp_path}/teacher",
  ]
  arguments = [*defaults, *distilled, f"--workdir={tmp_path}/student"]
  assert train.main(arguments) == 0, capsys.readouterr().err
  assert any("train/distillation_loss" in row for row in read_metrics(tmp_path / "student"))
