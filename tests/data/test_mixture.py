"""Mixtures have exact rates in every period; the rows of a part are the same as without mixing."""

import numpy as np
import pytest

import corpora
from chances import assert_share
from refusals import refuses
from stores import TokenStoreWriter
from t5x_like.data import loader, mixture, random, task
from t5x_like.data.tasks import ul2
from t5x_like.quiet_tensorflow import tf
from t5x_like.vocabularies.kinds.bytes import ByteVocabulary

SIZES = {"a": 700, "b": 330, "c": 64 * 3}  # tokens of each corpus


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  folder = tmp_path_factory.mktemp("corpora")
  for i, (name, tokens) in enumerate(SIZES.items()):
    corpora.write(folder / name / "train", tokens, [17 + i], name=name)
  with TokenStoreWriter(
    folder / "bytes" / "train", name="bytes", split="train", vocabulary=ByteVocabulary()
  ) as writer:
    writer.add(np.full(900, 50), [900])
  return folder


def causal(root, name, **arguments):
  # With these, the first token of a row identifies its window.
  fixed = {"documents_end": "nothing", "dynamic_offsets": False}
  return {"name": "causal_lm", "store": str(root / name), "length": 32} | fixed | arguments


def denoising(root, name, style, **arguments):
  store = str(root / name)
  return {"name": "denoising", "store": store, "style": style, "inputs_length": 32} | arguments


def build_mixture(parts, **arguments):
  return task.build("mixture", "train", parts=parts, **arguments)


@pytest.fixture(scope="module")
def three_parts(root):
  """Return a mixture of three parts, the second of which has shorter windows."""
  parts = {"a": causal(root, "a"), "b": causal(root, "b", length=20), "c": causal(root, "c")}
  return build_mixture(parts, rates={"a": 5, "b": 3, "c": 2}, period=20)


def test_temperature_rates_follow_the_sizes_up_to_the_maximum():
  assert mixture.temperature_rates([100, 300], 1.0) == [0.25, 0.75]
  assert mixture.temperature_rates([100, 10**9], 1.0, maximum=300) == [0.25, 0.75]
  np.testing.assert_allclose(mixture.temperature_rates([1, 16], 2.0), [0.2, 0.8])
  np.testing.assert_allclose(mixture.temperature_rates([1, 10**6], 2.0, maximum=16), [0.2, 0.8])
  np.testing.assert_allclose(mixture.temperature_rates([7, 10**9], 1e6), [0.5, 0.5], atol=1e-4)


def test_unimax_draws_equally_up_to_the_maximum_of_epochs():
  assert mixture.unimax_draws([100, 1, 10], 90, 1) == [79, 1, 10]
  generator = np.random.default_rng(0)
  for epochs in (1, 5):
    sizes = generator.integers(1, 10**6, 100)
    total = int(sizes.sum() * epochs) // 3
    draws = np.array(mixture.unimax_draws(sizes.tolist(), total, epochs))
    assert draws.sum() == pytest.approx(total)
    assert (draws <= epochs * sizes).all()
    is_unlimited = draws < epochs * sizes
    assert is_unlimited.any()
    assert np.ptp(draws[is_unlimited]) < 1e-3 * draws.max()
    assert draws[is_unlimited].min() >= draws[~is_unlimited].max()


def test_counts_are_the_rounded_rates():
  assert mixture.counts_per_period({"a": 0.5, "b": 0.3, "c": 0.2}, 10) == [5, 3, 2]
  assert mixture.counts_per_period({"a": 1, "b": 1, "c": 1}, 10) == [4, 3, 3]
  generator = np.random.default_rng(0)
  for _ in range(200):
    rates = generator.random(5) + 0.05
    period = int(generator.integers(60, 5_000))
    actual = mixture.counts_per_period(dict(zip("abcde", rates)), period)
    assert sum(actual) == period
    assert (abs(np.array(actual) - rates / rates.sum() * period) < 1).all()


@pytest.mark.parametrize(
  "rates, period, words",
  [
    ({"a": 1, "b": 0}, 10, ("rate of b: found 0",)),
    ({"a": 1, "b": -1.0}, 10, ("rate of b: found -1.0",)),
    ({"a": float("nan")}, 10, ("rate of a: found nan",)),
    ({"a": 1}, 0, ("period: found 0",)),
    ({"a": 1}, 2**31, ("period: found 2147483648, expected 1 to 16777216",)),
    ({"a": 1, "b": 1e-3}, 100, ("rate of b: found 0.0999", "at least 1001")),
  ],
)
def test_impossible_rates_are_refused(rates, period, words):
  with refuses(*words):
    mixture.counts_per_period(rates, period)


def test_a_temperature_of_0_is_refused():
  with refuses("temperature: found 0"):
    mixture.temperature_rates([1, 2], 0)


def test_schedule_numbers_the_draws_of_each_part():
  schedule = mixture.Schedule([2, 1])
  slots = tf.range(3, dtype=tf.int64)
  for period, expected_draws in ((0, [0, 0, 1]), (5, [10, 5, 11])):
    tasks, draws = schedule.locate(slots, tf.fill([3], np.int64(period)))
    assert tasks.numpy().tolist() == [0, 1, 0]
    assert draws.numpy().tolist() == expected_draws


def test_schedule_orders_each_period_anew_without_skipping_draws():
  periods = 20
  schedule = mixture.Schedule([50, 30, 7])
  index = tf.range(87 * periods, dtype=tf.int64)
  tasks, draws = (x.numpy().reshape(periods, 87) for x in schedule.draws(index, seed=3))
  for number, count in enumerate(schedule.counts):
    is_part = tasks == number
    assert (is_part.sum(axis=1) == count).all()
    draws_of_part = draws[is_part].reshape(periods, count)
    np.testing.assert_array_equal(
      np.sort(draws_of_part, axis=1).ravel(), np.arange(count * periods)
    )
  orders = {tuple(order) for order in tasks}
  assert len(orders) == periods
  tasks_of_another_seed, _ = schedule.draws(index[:87], seed=4)
  assert tuple(tasks_of_another_seed.numpy()) not in orders


def test_every_prefix_of_an_evaluation_has_the_rates():
  schedule = mixture.Schedule([50, 30, 7])
  tasks, _ = schedule.locate(tf.range(87, dtype=tf.int64), tf.zeros([87], tf.int64))
  for number, count in enumerate(schedule.counts):
    expected = np.arange(1, 88) * count / 87
    assert (abs(np.cumsum(tasks.numpy() == number) - expected) <= 1.5).all()


def test_each_part_passes_through_all_its_windows_in_every_epoch(three_parts):
  assert three_parts.num_examples == 20
  assert three_parts.name == "mixture"
  assert three_parts.features["decoder_target_tokens"].shape == (32,)
  batch = next(loader.train_batches(three_parts, batch_size=800, seed=1))
  tasks, draws = mixture.Schedule([10, 6, 4]).draws(tf.range(800, dtype=tf.int64), seed=1)
  lengths = (32, 20, 32)
  counts = (400, 240, 160)  # of 800 rows, at rates 5 : 3 : 2
  for number, (tokens, length, count) in enumerate(zip(SIZES.values(), lengths, counts)):
    rows = np.flatnonzero(tasks.numpy() == number)
    assert len(rows) == count
    targets = batch["decoder_target_tokens"][rows]
    assert (np.diff(targets[:, :length]) == 1).all()
    assert not targets[:, length:].any()
    assert (batch["decoder_loss_weights"][rows].sum(1) == length).all()
    windows = (targets[:, 0] - corpora.FIRST) // length
    examples = tokens // length
    num_epochs = count // examples
    assert num_epochs > 3
    in_order_of_draws = windows[np.argsort(draws.numpy()[rows])]
    epochs = in_order_of_draws[: num_epochs * examples].reshape(num_epochs, examples)
    assert (np.sort(epochs) == np.arange(examples)).all()
    assert len({tuple(epoch) for epoch in epochs}) > num_epochs // 2


def test_rows_of_a_part_are_the_same_without_mixing(root):
  """The noise of a part depends on its draw, seed and epoch only."""
  parts = {
    style: denoising(root, "a", style) for style in ("drop_tokens", "replace_spans", "bert_style")
  }
  mixture_task = build_mixture(parts, period=30)
  styles = sorted(parts)
  tasks_alone = {label: task.build(split="train", **part) for label, part in parts.items()}
  batch = next(loader.train_batches(mixture_task, batch_size=60, seed=9, start_step=100))
  tasks, draws = mixture.Schedule([10, 10, 10]).draws(tf.range(60, dtype=tf.int64) + 6_000, seed=9)
  for row in range(60):
    label = styles[tasks[row]]
    part = tasks_alone[label]
    seed = mixture.part_seed(9, label)
    epoch = draws[row : row + 1] // part.num_examples
    slot = draws[row : row + 1] % part.num_examples
    example = random.shuffle(slot, epoch, seed, part.num_examples)
    for name, value in part.batch(example, epoch, seed).items():
      actual = batch[name][row]
      np.testing.assert_array_equal(actual[: value.shape[1]], value[0])
      assert not actual[value.shape[1] :].any()


def test_rows_read_by_index_equal_rows_of_training(three_parts):
  rows = tf.range(8, dtype=tf.int64)
  expected = next(loader.train_batches(three_parts, batch_size=8, seed=9, start_step=0))
  slots = random.shuffle(rows, tf.zeros_like(rows), 9, three_parts.num_examples)
  batch = three_parts.batch(slots, tf.zeros_like(rows), 9)
  for name, value in batch.items():
    np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_evaluation_is_one_period(three_parts):
  batches = list(loader.eval_batches(three_parts, batch_size=8))
  assert [(batch["example_index"] >= 0).sum() for batch in batches] == [8, 8, 4]


def test_mixtures_of_equal_counts_have_equal_fingerprints(root):
  parts = {"a": causal(root, "a"), "b": causal(root, "b")}  # 21 and 10 windows
  options = {
    "sizes": {"rates": "proportional"},
    "fewer of a": {"rates": "proportional", "maximum": 10},
    "equal": {"rates": "equal"},
    "equal by name": {"rates": {"a": 2, "b": 2}},
    "temperature": {"rates": "temperature", "temperature": 2.0},
    "longer": {"rates": "equal", "period": 32},
    # With 15 draws of each part, the ten windows of b would repeat.
    "unimax": {"rates": "unimax", "draws": 30, "period": 30},
  }
  mixtures = {}
  for name, option in options.items():
    mixtures[name] = build_mixture(parts, **{"period": 31} | option)
  fingerprints = {name: mixed.fingerprint for name, mixed in mixtures.items()}
  renamed = build_mixture({"x": parts["a"], "b": parts["b"]}, rates="proportional", period=31)
  assert fingerprints["equal"] == fingerprints["fewer of a"] == fingerprints["equal by name"]
  assert len({renamed.fingerprint, *fingerprints.values()}) == 6
  assert mixtures["unimax"].schedule.counts == (20, 10)


def test_shared_arguments_apply_to_every_part(root):
  parts = {name: causal(root, name) for name in "ab"}
  shared = parts["a"] | {"store": str(root / "b")}
  by_shared_arguments = build_mixture(
    {"a": {"store": str(root / "a")}, "b": {}}, shared=shared, period=31
  )
  assert by_shared_arguments.fingerprint == build_mixture(parts, period=31).fingerprint


PART = dict(name="causal_lm", store="x")
MISSPELT = PART | dict(lenth=3)


@pytest.mark.parametrize(
  "parts, arguments, key, value",
  [
    ({}, {}, "parts", "found none"),
    ({"a": 3}, {}, "parts.a", "found 3"),
    ({"a": dict(name="causal_ln")}, {}, "parts.a.name", "did you mean 'causal_lm'"),
    ({"a": dict(store="x")}, {}, "parts.a.name", "found no name"),
    ({"a": dict(name="causal_lm")}, {}, "parts.a.store", "missing"),
    ({"a": MISSPELT}, {}, "parts.a.lenth", "did you mean 'length'"),
    ({"a": PART | dict(rate=2)}, {}, "parts.a.rate", "unknown key"),
    ({"a": PART}, dict(rates={"a": "2"}), "rates.a", "found '2'"),
    ({"news": PART}, dict(rates={"new": 2}), "rates.new", "'news'"),
    ({"a": dict(name="mixture", parts={})}, {}, "parts.a.parts", "found none"),
    ({"a": dict(name="mixture", parts={"b": MISSPELT})}, {}, "parts.a.parts.b.lenth", "'length'"),
    ({}, dict(rates="sizes"), "rates", "found 'sizes'"),
    ({"a": PART}, dict(rates="unimax"), "draws", "found None"),
    ({"a": PART}, dict(draws=9), "draws", "found 9"),
  ],
)
def test_bad_arguments_are_refused(parts, arguments, key, value):
  with refuses(f"task.{key}: ", value):
    build_mixture(parts, **arguments)


def test_incompatible_parts_are_refused(root):
  a = causal(root, "a")
  masked = causal(root, "b", document_mask=True)
  with refuses("decoder_positions", "decoder_segment_ids"):
    build_mixture({"a": a, "b": masked})
  with refuses("encoder_input_tokens"):
    build_mixture({"a": a, "b": denoising(root, "b", "drop_tokens")})
  with refuses("prepare their stores"):
    build_mixture({"a": a, "b": causal(root, "bytes")})
  inner = {"name": "mixture", "parts": {"b": causal(root, "b")}}
  with refuses("'few/b'"):
    build_mixture({"few/b": a, "few": inner})


def test_temperature_mixing_limits_the_size_of_unlabelled_text(root, tmp_path):
  """As in T5's multi-task pretraining.

  The maximum of 20 limits the 28 windows of text to the number of labelled records.
  """
  (tmp_path / "pairs.tsv").write_text("q\ta\n" + "".join(f"{i}\tyes\n" for i in range(20)))
  pairs = {
    "source": f"tsv:{tmp_path}/pairs.tsv",
    "inputs": "{q}",
    "targets": "{a}",
    "vocabulary": "bytes",
  }
  pairs |= {"packed": False, "targets_length": 16, "cache": str(tmp_path)}
  parts = {"unlabelled": denoising(root, "bytes", "replace_spans"), "pairs": pairs}
  shared = {"name": "text_to_text", "inputs_length": 32}
  built_task = build_mixture(parts, shared=shared, rates="temperature", maximum=20, period=40)
  batch = next(loader.train_batches(built_task, batch_size=40, seed=0))
  yes = ByteVocabulary().encode("yes")
  assert (batch["decoder_target_tokens"][:, :3] == yes).all(1).sum() == 20
  assert batch["encoder_input_tokens"].shape == (40, 32)


def test_nested_mixture_equals_a_flat_mixture_of_all_parts(root):
  # These parts have 21, 10 and 6 windows.
  a = causal(root, "a")
  b = causal(root, "b")
  c = causal(root, "c")
  inner = {"name": "mixture", "parts": {"b": b, "c": c}, "rates": {"b": 3, "c": 1}, "period": 8}
  mixture_task = build_mixture({"a": a, "few": inner}, rates={"a": 1, "few": 2}, period=60)
  assert dict(zip(mixture_task.parts, mixture_task.schedule.counts)) == {
    "a": 20,
    "few/b": 30,
    "few/c": 10,
  }
  parts = {"a": a, "few/b": b, "few/c": c}
  tasks_alone = {name: task.build(split="train", **part) for name, part in parts.items()}
  flat = mixture.mix(tasks_alone, {"a": 2, "few/b": 3, "few/c": 1}, period=60, name="mixture")
  assert mixture_task.fingerprint == flat.fingerprint
  nested_batch = next(loader.train_batches(mixture_task, batch_size=90, seed=4))
  flat_batch = next(loader.train_batches(flat, batch_size=90, seed=4))
  corpora.assert_same(nested_batch, flat_batch)
  sizes = build_mixture({"a": a, "few": inner}, rates="proportional", period=37)
  assert dict(zip(sizes.parts, sizes.schedule.counts)) == {"a": 21, "few/b": 12, "few/c": 4}


def build_ul2(root, **arguments):
  return task.build("ul2", "train", store=str(root / "a"), length=32, **arguments)


def modes_by_ids() -> dict[tuple, str]:
  """Return the denoiser of each mode token; bytes encode the token as five ids."""
  return {tuple(ByteVocabulary().encode(text)): name for name, text in ul2.MODE_TOKENS.items()}


def test_ul2_reads_each_window_once_an_epoch_with_one_of_its_denoisers(root):
  ul2_task = build_ul2(root, mode_tokens=True, dynamic_offsets=False)
  assert ul2_task.num_examples == SIZES["a"] // 32
  rows = next(loader.train_batches(ul2_task, batch_size=140 * 21, seed=0))
  text = np.concatenate([rows["encoder_input_tokens"][:, 5:], rows["decoder_target_tokens"]], 1)
  is_text = (text >= corpora.FIRST) & (text < corpora.FIRST + SIZES["a"])
  first_tokens = np.where(is_text, text, 10**6).min(axis=1)  # a row holds a whole window
  windows, offsets = np.divmod(first_tokens - corpora.FIRST, 32)
  assert not offsets.any()
  assert (np.sort(windows.reshape(140, 21)) == np.arange(21)).all()
  modes = [modes_by_ids()[tuple(row[:5])] for row in rows["encoder_input_tokens"]]
  for mode, share in (("r", 2 / 7), ("s", 1 / 7), ("x", 4 / 7)):
    assert_share(modes.count(mode), 2940, share)
  assert len(set(zip(windows, modes))) == 21 * 3  # each window appears with each mode


def test_proportional_rates_count_the_windows_of_each_task(root):
  two = build_mixture(
    {"a": causal(root, "c"), "b": causal(root, "b")}, rates="proportional", period=16
  )
  assert two.schedule.counts == (6, 10)
  parts = {
    "ul2": {"name": "ul2", "length": 32},
    "t5": {"name": "span_corruption", "inputs_length": 29},
  }
  mixture_task = build_mixture(
    parts, rates="proportional", period=420, shared={"store": str(root / "a")}
  )
  examples = {label: part.num_examples for label, part in mixture_task.parts.items()}
  assert examples["ul2"] == 21
  assert mixture_task.schedule.counts == tuple(mixture.counts_per_period(examples, 420))


def test_s_denoiser_of_ul2_splits_a_window_after_three_quarters(root):
  ul2_task = build_ul2(root, mode_tokens=True)
  batch = next(loader.train_batches(ul2_task, batch_size=70, seed=0))
  modes = [modes_by_ids()[tuple(row[:5])] for row in batch["encoder_input_tokens"]]
  assert set(modes) == {"r", "s", "x"}
  sentinel = corpora.SIZE - 1
  for row in np.flatnonzero(np.array(modes) == "s"):
    inputs = batch["encoder_input_tokens"][row].tolist()
    targets = batch["decoder_target_tokens"][row].tolist()
    start = inputs[5]
    assert inputs[5:31] == [*range(start, start + 24), sentinel, 1]
    assert targets[:10] == [sentinel, *range(start + 24, start + 32), 1]
    assert not any(inputs[31:] + targets[10:])
  rates = dict.fromkeys(ul2.DENOISERS, 0) | {"s": 1}
  s_denoiser = build_ul2(root, rates=rates)
  assert s_denoiser.features["decoder_target_tokens"].shape == (10,)


@pytest.mark.parametrize(
  "rates, name",
  [
    ({"r_4": 1}, "config.task.rates.r_4: "),
    ({"s": "often"}, "config.task.rates.s: found 'often'"),
    (dict.fromkeys(ul2.DENOISERS, 0), "0 for every denoiser"),
  ],
)
def test_impossible_rates_of_ul2_are_refused(root, rates, name):
  with refuses(name):
    build_ul2(root, rates=rates)
