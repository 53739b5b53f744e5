"""Every recipe: what it describes, by abstract evaluation, and two steps of its `:debug` form."""

import inspect
import json
import math
import pathlib

import pytest

import more
from refusals import refuses
from t5x_like import config as config_lib
from t5x_like import laptop, models, recipes, slots, train
from t5x_like.abstract_model import build_model
from t5x_like.data import task as tasks
from t5x_like.files import checked_json
from t5x_like.interop.published_images import processor_config
from t5x_like.nn import params
from t5x_like.report.writer import read_metrics
from t5x_like.store import tokens
from t5x_like.training.build import build_parts
from t5x_like.training.resolve import resolve
from tests import topics

pytestmark = pytest.mark.usefixtures("compiled")

RECIPES = sorted(
  p.as_posix() for p in pathlib.Path("configs").rglob("*.py") if p.name != "__init__.py"
)


# One that pretrains and one that fine-tunes; the tests of other commands train a T5 and a GPT. That
# of BERT would compile a step for each of its two phases.
SHOWN = tuple(f"configs/{name}.py" for name in ("roberta/base", "finetune/encoder"))


def debug_recipes():
  """Recipes with one `:debug` form run it once: in `make test` those of `SHOWN`, others in `make
  test-more`."""
  forms = {}
  for recipe in (*SHOWN, *RECIPES):
    forms.setdefault(checked_json.digest(recipes.load(f"{recipe}:debug").to_dict()), recipe)
  return [recipe if recipe in SHOWN else more.later(recipe) for recipe in forms.values()]


# Keys that say which corpus, and what of it.
CORPUS = {
  *("store", "source", "vocabulary", "inputs", "targets", "parts", "shared", "period", "text"),
  *("pair", "labels", "template", "image_field", "caption_field", "folder", "tags", "tags_field"),
  *("prompt", "fields", "passages", "passages_split", "passage", "own", "rates", "weights"),
}
LENGTHS = {
  *("length", "inputs_length", "targets_length", "prompt_length", "passage_length"),
  *("new_tokens", "resolution", "patch"),
}
# Parameters of T5 1.1 and 1.0 with the vocabulary of 32,128.
GOLDEN = {
  "small": (76_961_152, 60_506_624),
  "base": (247_577_856, 222_903_552),
  "large": (783_150_080, 737_668_096),
  "xl": (2_849_757_184, 2_851_598_336),
  "xxl": (11_135_332_352, 11_307_321_344),
}


def resolve_recipe(recipe: str, *overrides: str):
  return resolve(recipes.load(f"configs/{recipe}", overrides))


def count_parameters(model) -> int:
  return sum(math.prod(p.shape) for p in params.named_params(model).values())


@pytest.fixture
def forbid_data(monkeypatch):
  """Fail a test that builds a task or opens a store."""

  def refuse_to_open(*_, **__):
    raise AssertionError("data were opened")

  monkeypatch.setattr(tasks, "build_at", refuse_to_open)
  monkeypatch.setattr(tokens.TokenStore, "open", refuse_to_open)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_resolves_and_builds_without_data_or_arrays(recipe, forbid_data):
  assert isinstance(resolve(recipes.load(f"{recipe}:debug")).model.get("vocab_size", 0), int)
  config = resolve(recipes.load(recipe))
  built = build_parts(config)
  assert set(config) == set(config_lib.defaults())
  assert count_parameters(built.model) == sum(x.size for x in built.state.params.values())
  if config.task.name == "span_corruption" and "quickstart" not in recipe and "byt5" not in recipe:
    assert config.task.inputs_length == 512
    assert config.task.targets_length == 114
  assert f"--config={recipe}" in pathlib.Path(recipe).read_text() or "quickstart" in recipe


SQUAD_2_STEPS = 2 * 130_319
# Values of the authors' code and papers: (recipe, key, value). Those of a group have one source.
AUTHORS_VALUES = [
  # fairseq and its children have one group of parameters; BERT's code spares gains and biases
  *(
    (f"{recipe}.py", "optimizer.undecayed", undecayed)
    for recipe, undecayed in {
      "roberta/base": "nothing",
      "roberta/batches": "nothing",
      "bart/base": "nothing",
      "opt/125m": "nothing",
      "bert/spanbert": "nothing",
      "bert/base": "vectors",
      **topics.cases("UNDECAYED"),
    }.items()
  ),
  # `create_optimizer` of BERT, ALBERT and ELECTRA, `warmup_linear` of GPT-1; fairseq's and XLNet's
  ("bert/base.py", "schedule.decay", "from_start"),
  ("bert/spanbert.py", "schedule.decay", "after_warmup"),
  ("albert/base.py", "schedule.decay", "from_start"),
  ("electra/small.py", "schedule.decay", "from_start_times_warmup"),
  ("finetune/decoder.py", "schedule.decay", "from_start_times_warmup"),
  ("finetune/encoder.py", "schedule.decay", "from_start"),
  ("finetune/encoder.py:electra", "schedule.decay", "from_start_times_warmup"),
  ("finetune/encoder.py:roberta", "schedule.decay", "after_warmup"),
  ("roberta/base.py", "schedule.decay", "after_warmup"),
  ("roberta/input_formats.py", "schedule.decay", "after_warmup"),
  ("xlnet/base.py", "schedule.decay", "after_warmup"),
  *((recipe, "schedule.decay", decay) for recipe, decay in topics.cases("RATE_DECAYS").items()),
  # the encoders' papers, for each task
  ("finetune/encoder.py:squad/squad_v2", "schedule.learning_rate", 5e-5),
  ("finetune/encoder.py:squad/squad_v2", "batch_size", 48),
  ("finetune/encoder.py:squad/squad_v2", "total_steps", SQUAD_2_STEPS // 48),
  ("finetune/encoder.py:squad/squad", "batch_size", 32),
  ("finetune/encoder.py:squad/squad", "total_steps", 3 * 87_599 // 32),
  ("finetune/encoder.py:choices/swag", "schedule.learning_rate", 2e-5),
  ("finetune/encoder.py:choices/swag", "batch_size", 16),
  ("finetune/encoder.py:glue/cola", "schedule.learning_rate", 3e-5),
  ("finetune/encoder.py:glue/cola", "total_steps", 3 * 8_551 // 32),
  ("finetune/encoder.py:squad/squad_v2,electra", "schedule.learning_rate", 1e-4),
  ("finetune/encoder.py:squad/squad_v2,electra", "total_steps", SQUAD_2_STEPS // 32),
  ("finetune/encoder.py:squad/squad_v2,roberta", "schedule.learning_rate", 1.5e-5),
  ("finetune/encoder.py:squad/squad_v2,roberta", "batch_size", 48),
  # the command of t5_closed_book_qa in google-research: 196,608 tokens a step
  ("finetune/text_to_text.py:text/web_questions", "total_steps", 10_000),
  ("finetune/text_to_text.py:text/web_questions", "batch_size", 196_608 // 128),
  ("finetune/text_to_text.py:text/web_questions", "task.inputs_length", 128),
  # T5 1.1 and 1.0
  ("t5/base.py", "model.vocab_size", 32_128),
  ("t5/base.py", "batch_size", 128),
  ("t5/base.py", "total_steps", 524_288),
  ("t5/base.py", "model.dropout", 0.0),
  ("t5/base.py:base,v1_0", "model.dropout", 0.1),
  ("t5/base.py", "optimizer.name", "adafactor"),
  ("t5/base.py", "schedule.name", "rsqrt"),
  ("t5/base.py", "schedule.warmup_steps", 10_000),
  # adafactor_momentum_nofactor.gin of umT5's XXL
  ("mt5/umt5_base.py", "optimizer.name", "adafactor"),
  ("mt5/umt5_base.py", "clip_norm", 0.0),
  ("mt5/umt5_base.py:xxl", "clip_norm", 1.0),
  ("mt5/umt5_base.py:xxl", "optimizer.name", "unfactored_adafactor"),
  ("mt5/umt5_base.py:xxl", "optimizer.decay_rate", 0.8),
  ("mt5/umt5_base.py:xxl", "optimizer.momentum", 0.9),
  ("mt5/umt5_base.py:xxl", "optimizer.clipping_threshold", 1.0),
  ("mt5/umt5_base.py:xxl", "optimizer.decay_power", None),
  # Megatron's default
  ("bloom/560m.py", "model.dropout", 0.1),
  # `load_balancing_loss_func` of transformers pools the layers and is `top_k` when balanced; ours
  # sums layers of which each is 1
  ("mixtral/8x7b.py", "model.design.experts.balance_loss", 0.02 * 2 / 32),
  # the probe of the masked autoencoder reads the class token; above 224 the side is seen whole
  ("vit/mae_classify.py:huge", "model.head.pooling", "mean"),
  ("vit/mae_classify.py:huge", "task.crop", 0.875),
  ("vit/mae_classify.py:huge_448", "task.crop", 1.0),
  ("vit/mae_classify.py:huge,probe", "model.head.pooling", "token"),
  # timm's `create_optimizer` passes `--opt-eps`, where Apex would take 1e-6
  ("deit/deit3.py", "optimizer.eps", 1e-8),
  # Flax's default, in big_vision
  ("vit/small.py", "model.design.activation", "gelu_tanh"),
]


@pytest.mark.parametrize(("recipe", "key", "value"), AUTHORS_VALUES)
def test_a_recipe_has_the_values_of_its_authors(recipe, key, value):
  actual = resolve_recipe(recipe)
  for part in key.split("."):
    actual = actual[part]
  assert actual == (pytest.approx(value) if isinstance(value, float) else value)


def test_pythia_has_the_gelu_of_its_configs():
  """`bias_gelu_fusion` is the tanh form in megatron/model/activations.py of EleutherAI/gpt-neox."""
  model = build_model(resolve_recipe("neox/pythia_160m.py"))
  assert model.variant.design.activation == "gelu_tanh"


def test_languages_are_those_of_mt5():
  """`MC4_LANGUAGES` of TFDS, which mT5's mixture takes."""
  languages = recipes.load_module("configs/mt5/base.py").LANGUAGES
  latin = [f"{language}-Latn" for language in ("bg", "el", "hi", "ja", "ru", "zh")]
  assert len(set(languages)) == 101 + 6
  assert [name for name in languages if "-" in name] == latin


def test_a_shorter_fine_tuning_is_evaluated_and_saved_as_often():
  config = resolve_recipe("finetune/encoder.py:glue/qqp", "total_steps=60")
  assert config.eval_every == 6
  assert config.checkpoint.every == 6
  assert build_parts(config).schedule(6) > 0


@pytest.mark.parametrize(
  "argument, activation", [("glue/cola,electra", None), ("own,electra", "gelu")]
)
def test_electra_reads_the_raw_first_token(argument, activation):
  """`get_prediction_module` and `get_pooled_output` of google-research/electra."""
  config = resolve_recipe(f"finetune/encoder.py:{argument}")
  assert config.model.head.activation == activation
  names = params.arrays(build_parts(config).model)
  assert ("head/pooler/dense/kernel" in names) == (activation is not None)
  assert "head/out/kernel" in names


@pytest.mark.parametrize(("size", "counts"), GOLDEN.items())
def test_t5_has_the_sizes_of_the_paper(size, counts):
  models = [build_model(resolve_recipe(f"t5/base.py:{words}")) for words in (size, f"{size},v1_0")]
  assert tuple(count_parameters(model) for model in models) == counts


def test_siglip_sees_images_in_evaluations_as_its_published_processors_do():
  processor = processor_config(recipes.load("configs/siglip/base.py").task.to_dict())
  assert processor["size"] == {"height": 224, "width": 224}
  assert "do_center_crop" not in processor


@pytest.mark.parametrize("recipe", debug_recipes())
def test_a_recipe_runs_two_debug_steps(recipe, tmp_path, capsys):
  flags = ("--config.peak_flops=1e11",)
  assert train.main([f"--config={recipe}:debug", f"--workdir={tmp_path}", *flags]) == 0, (
    capsys.readouterr().err
  )
  rows = read_metrics(tmp_path)
  assert [row["step"] for row in rows if "train/loss" in row] == [1, 2]
  assert all(math.isfinite(value) for row in rows for value in row.values())
  assert any(name.startswith("eval/") and name.endswith("/examples") for name in rows[-1])
  saved = json.loads((tmp_path / "config.json").read_text())
  assert saved["total_steps"] == 2
  assert (tmp_path / "report.html").stat().st_size > 10_000
  assert (tmp_path / "checkpoints" / "2").is_dir()


def subject(config) -> dict:
  """Return the values of a config that the laptop forms keep."""
  head, _ = slots.name_and_arguments("model.head", config.model.get("head") or "none")
  task = {key: value for key, value in config.task.items() if key not in LENGTHS | CORPUS}
  return {
    "family": config.model.name,
    "head": head,
    "objective": config.objective.name,
    "optimizer": config.optimizer,
    "schedule": config.schedule.name,
    "clip_norm": config.clip_norm,
    "phases": config.phases.keys(),
    "task": task,
  }


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_laptop_forms_keep_what_a_recipe_is_about(recipe):
  full = recipes.load(recipe)
  tiny = recipes.load(f"{recipe}:tiny")
  debug = recipes.load(f"{recipe}:debug")
  assert subject(tiny) == subject(full) == subject(debug)
  for key in ("store", "source", "vocabulary", "inputs", "targets"):
    assert tiny.task.get(key) == full.task.get(key)
  assert tiny.model.get("vocab_size", "auto") == "auto"
  assert tiny.total_steps == 400
  assert debug.total_steps == 2


def test_an_unknown_argument_is_refused():
  with refuses("'debgu': unknown", "did you mean 'debug'"):
    recipes.load("configs/t5/base.py:debgu")


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_argument_resolves_to_a_config_of_its_own(recipe):
  get_config = recipes.load_module(recipe).get_config
  *words, tiny, debug = recipes.argument_choices(get_config)
  assert (tiny, debug) == ("tiny", "debug")

  def digest(recipe):
    return checked_json.digest(resolve(recipes.load(recipe)).to_dict())

  digests = {digest(f"{recipe}:{word}") for word in words}
  # the default of each parameter is the recipe itself
  parameters = inspect.signature(get_config).parameters.values()
  defaults = [parameter for parameter in parameters if str(parameter.default) in words]
  assert len(digests) == len(words) - max(0, len(defaults) - 1)
  assert (digest(recipe) in digests) == bool(defaults)


@pytest.mark.parametrize("words", ["small,large", "small,small", "tiny,debug"])
def test_of_words_that_exclude_each_other_one_is_taken(words):
  first, second = words.split(",")
  with refuses(f"'{second}': found '{first}' before it"):
    recipes.load(f"configs/t5/base.py:{words}")


def test_a_laptop_takes_the_tiny_size_with_the_design_of_the_full_one():
  tiny = {
    ("t5", "mt5-base"): "t5-v1_1-tiny",
    ("t5", "umt5-base"): "t5-v1_1-tiny",
    ("t5", "t5-3b"): "t5-tiny",
    ("t5_lm", "prefix-base"): "prefix-tiny",
    ("t5_lm", "v1_1-base"): "v1_1-tiny",
    ("gpt", "gpt1"): "gpt2-tiny",
    ("switch", "switch-base-128"): "switch-tiny-8",
    ("llama", "llama3.1-8b"): "tiny",
  }
  assert {key: laptop.tiny_variant(*key) for key in tiny} == tiny
  for family in slots.names(models):
    variants = slots.find("family", family, models, "Model").VARIANTS
    assert all("tiny" in laptop.tiny_variant(family, variant) for variant in variants)


@pytest.mark.parametrize(
  ("overrides", "evaluators"),
  [
    ([], {"loss", "span_infilling"}),
    (['task={"name": "ul2", "store": "builtin"}'], {"loss", "span_infilling"}),
    (['task={"name": "text_to_text", "source": "builtin"}'], {"loss"}),
    (['task={"name": "prefix_lm", "store": "builtin"}', "evals.span_infilling.samples=2"], None),
  ],
)
def test_only_tasks_with_sentinels_have_their_spans_evaluated(overrides, evaluators):
  config = recipes.load("configs/t5/base.py:debug", overrides)
  assert set(config.evals) == (evaluators or {"loss", "span_infilling"})


def test_the_laptop_form_of_a_recipe_overrides_the_general_one(tmp_path):
  recipe = tmp_path / "recipe.py"
  text = (
    "from configs.t5 import base\nLAPTOP = {'batch_size': 16, '%s': 3}\nget_config = "
    "base.get_config\n"
  )
  recipe.write_text(text % "model.design.softcap")
  assert recipes.load(str(recipe)).batch_size == 128
  config = recipes.load(f"{recipe}:small,tiny", ["model.dropout=0.2"])
  assert config.batch_size == 16
  assert config.model.design.softcap == 3
  assert config.model.dropout == 0.2
  assert config.model.variant == "t5-v1_1-tiny"
  recipe.write_text(text % "totl_steps")
  with refuses("LAPTOP", "config has no key 'totl_steps'", "did you mean 'total_steps'"):
    recipes.load(f"{recipe}:tiny")


@pytest.mark.parametrize(
  "override",
  [
    'mesh={"__class__": 1}',
    "mesh.__class__.x=1",
    "schedule.__class__=1",
    "__class__=3",
    'task={"a": {"__class__": [[]]}}',
    "task.a.__dict__.b=1",
  ],
)
def test_names_that_python_reserves_are_refused(override):
  with refuses("--config.", "__", "found"):
    recipes.load("tests/recipes/nano.py", [override])


CYCLIC_RECIPE = """
from t5x_like.config import defaults

def get_config():
  config = defaults()
  task = {}
  task["a"] = task
  config.task = task
  return config
"""


def test_a_recipe_that_contains_itself_is_refused(tmp_path):
  (tmp_path / "own.py").write_text(CYCLIC_RECIPE)
  with refuses("own.py: config.task", "contains itself"):
    recipes.load(str(tmp_path / "own.py"))
