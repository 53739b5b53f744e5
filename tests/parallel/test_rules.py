"""Logical axes become shardings; sizes that do not divide are refused in one line, by name."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tiny
from arrays import assert_trees_close
from refusals import refuses
from t5x_like.nn import params
from t5x_like.nn.embed import Embed
from t5x_like.nn.linear import Linear, apply_jointly, matmul
from t5x_like.parallel import rules as rules_module
from t5x_like.parallel.constrain import constrain, exchange
from t5x_like.parallel.mesh import AXES, exchange_stages, make_mesh
from t5x_like.parallel.rules import DEFAULT, Rules, from_local_rows, local_rows


def make_rules(changes=None, **mesh):
  """Return the rules of a mesh of as many devices as its axes multiply to."""
  devices = jax.devices()[: math.prod(mesh.values())]
  return Rules.make(make_mesh(mesh, devices), changes)


def t5_parameters(**sizes):
  """Return the abstract parameters of a T5 with these sizes, by name."""
  make = tiny.maker(tiny.sizes("1.1", **sizes), vocab_size=64)
  return params.named_params(jax.eval_shape(make, jax.random.key(0)))


# Mesh


def test_mesh_has_every_axis_and_is_of_type_auto():
  mesh = make_mesh({"data": 2, "tensor": 2, "fsdp": -1})
  assert mesh.axis_names == AXES
  assert mesh.size == 8
  assert {a: n for a, n in mesh.shape.items() if n > 1} == {"data": 2, "fsdp": 2, "tensor": 2}
  assert all(kind == jax.sharding.AxisType.Auto for kind in mesh.axis_types)
  assert set(mesh.devices.flat) == set(jax.devices())
  assert make_mesh({"data": -1}).shape["data"] == 8
  assert make_mesh({}, jax.devices()[:1]).size == 1


@pytest.mark.parametrize(
  "sizes, words",
  [
    ({"data": 4}, ["multiplies to 4", "found 8", "-1"]),
    ({"data": 16}, ["multiplies to 16", "found 8"]),
    ({"data": -1, "tensor": 3}, ["multiple of 3", "mesh.data=-1", "found 8"]),
    ({"data": -1, "fsdp": -1}, ["at most one -1"]),
    ({"data": 0, "fsdp": 8}, ["positive"]),
    ({"data": -2}, ["positive"]),
    ({"tensr": 8}, ["mesh.tensr", "unknown mesh axis", "tensor"]),
  ],
)
def test_meshes_that_do_not_fit_are_refused(sizes, words):
  with refuses(*words):
    make_mesh(sizes)


# Rules


def test_logical_axes_become_partition_specs():
  rules = make_rules(data=2, fsdp=2, tensor=2)
  assert rules.spec(("layers", "embed", "mlp")) == PartitionSpec(None, "fsdp", "tensor")
  assert rules.spec(("vocab", "embed")) == PartitionSpec("tensor", "fsdp")
  assert rules.spec((None,)) == PartitionSpec(None)
  assert rules.batch().spec == PartitionSpec(("data", "fsdp"))
  assert rules.spec(("batch", "length", "activation_mlp")) == PartitionSpec(
    ("data", "fsdp"), None, "tensor"
  )
  # A mesh axis can split only one axis of an array.
  assert rules.spec(("mlp", "heads")) == PartitionSpec("tensor", None)
  assert rules.ways("batch") == 4
  assert rules.ways("mlp") == 2
  assert rules.ways("layers") == 1


def test_a_recipe_can_change_rules():
  rules = make_rules(
    {"embed": ("fsdp", "data"), "mlp": None, "vocab": "data"}, data=2, fsdp=2, tensor=2
  )
  assert rules.spec(("embed", "mlp")) == PartitionSpec(("fsdp", "data"), None)
  assert rules.spec(("vocab", "embed")) == PartitionSpec("data", "fsdp")
  assert make_rules(fsdp=8).table == DEFAULT


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"embd": "fsdp"}, ("rules.embd", "did you mean 'embed'?")),
    ({"embed": "fspd"}, ("rules.embed", "'fspd'", "did you mean 'fsdp'?")),
  ],
)
def test_unknown_axes_are_refused_with_a_suggestion(changes, words):
  with refuses(*words):
    make_rules(changes, fsdp=8)


SIX_HEADS = dict(heads=6, head_dim=64, embed=64, mlp=64)


@pytest.mark.parametrize(
  "changes, mesh, sizes, words",
  [
    # 4 divides the 6 * 64 = 384 columns of the kernel, but it would split heads.
    (
      None,
      dict(data=2, tensor=4),
      SIX_HEADS,
      ("attention/layer/", "/kernel", "heads", "6 ", "width 64", "tensor", "into 4", "rules."),
    ),
    (None, dict(fsdp=8), dict(embed=20), ("20 embed", "embed->fsdp", "into 8", "rules.embed=None")),
    ({"embed": None}, dict(tensor=8), dict(heads=8, mlp=36), ("mlp", "36 mlp", "into 8")),
    (
      {"embed": ("fsdp", "data")},
      dict(data=2, fsdp=4),
      dict(embed=12),
      ("fsdp+data", "into 8"),
    ),
  ],
)
def test_axes_that_do_not_divide_are_refused_by_name(changes, mesh, sizes, words):
  with refuses(*words):
    make_rules(changes, **mesh).param_shardings(t5_parameters(**sizes))


def test_tensor_axis_splits_heads():
  shardings = make_rules(tensor=2).param_shardings(t5_parameters(**SIX_HEADS))
  attention = "encoder/blocks/self_attention/layer"
  assert shardings[f"{attention}/query/kernel"].spec == PartitionSpec(None, None, "tensor")
  assert shardings[f"{attention}/out/kernel"].spec == PartitionSpec(None, "tensor", None)
  assert shardings["encoder/position/table"].spec == PartitionSpec(None, "tensor")


def test_fsdp_and_tensor_split_every_parameter_except_vectors():
  shardings = make_rules(fsdp=4, tensor=2).param_shardings(t5_parameters())
  for name, p in t5_parameters().items():
    ways = 8
    if "position" in name:
      ways = 2
    if "scale" in name:
      ways = 1
    assert math.prod(shardings[name].shard_shape(p.shape)) * ways == p.size, name


# Activations


def test_constrain_pins_a_sharding_only_under_rules():
  x = jnp.ones((8, 4, 16))
  assert constrain(x, "batch", "length", "activation_mlp") is x
  rules = make_rules(data=2, fsdp=2, tensor=2)

  @jax.jit
  def run(x):
    with rules.activate():
      whole = constrain(x, "batch", "length", "activation_mlp")
      three_rows = constrain(x[:3], "batch", None, "activation_mlp")
      return whole, three_rows

  whole, three_rows = run(jax.device_put(x, rules.replicated))
  assert whole.sharding.spec == PartitionSpec(("data", "fsdp"), None, "tensor")
  # 4 devices along the batch cannot split 3 rows, so each holds all of them.
  assert three_rows.sharding.shard_shape(three_rows.shape) == (3, 4, 8)
  assert constrain(x, "batch", "length", "activation_mlp") is x


# The rows of a process


def test_single_process_reads_every_row():
  assert local_rows(make_rules(data=4, tensor=2).batch(), 32).tolist() == [*range(32)]


class ShardingOfProcess:
  """A stand-in for a sharding as seen by a process that owns only some of the devices."""

  def __init__(self, sharding, devices):
    self.sharding = sharding
    self.devices = devices

  def addressable_devices_indices_map(self, shape):
    shards = self.sharding.devices_indices_map(shape)
    return {d: shards[d] for d in self.devices}


@pytest.mark.parametrize("process, rows", [(0, range(16)), (1, range(16, 32))])
def test_local_rows_of_two_processes(process, rows):
  mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor"))
  devices = mesh.devices[2 * process : 2 * process + 2].ravel()
  split = ShardingOfProcess(NamedSharding(mesh, PartitionSpec("data")), devices)
  replicated = ShardingOfProcess(NamedSharding(mesh, PartitionSpec()), devices)
  assert local_rows(split, 32).tolist() == [*rows]
  assert local_rows(replicated, 32).tolist() == [*range(32)]


@pytest.mark.parametrize(
  "axes", [{"data": 8}, {"data": 4, "tensor": 2}, {"data": 2, "fsdp": 4}, {"fsdp": 8}]
)
def test_hosts_with_scattered_devices_together_read_every_row(axes):
  devices = np.array(jax.devices())
  order = np.random.default_rng(0).permutation(8)
  mesh = Mesh(devices[order].reshape(tuple(axes.values())), tuple(axes))
  sharding = NamedSharding(mesh, PartitionSpec(tuple(a for a in axes if a != "tensor")))
  shards = sharding.devices_indices_map((32,))
  rows_of_hosts = set()
  for host in range(4):
    host_devices = devices[2 * host : 2 * host + 2]
    rows = local_rows(ShardingOfProcess(sharding, host_devices), 32)
    host_rows = {row for device in host_devices for row in range(*shards[device][0].indices(32))}
    assert rows.tolist() == sorted(host_rows)
    rows_of_hosts |= host_rows
  assert rows_of_hosts == set(range(32))


@pytest.mark.parametrize(
  "spec", [PartitionSpec("data"), PartitionSpec("data", "tensor"), PartitionSpec()]
)
def test_global_arrays_are_made_from_local_rows(spec, monkeypatch):
  devices = np.array(jax.devices())[[5, 0, 3, 6, 1, 7, 2, 4]]
  sharding = NamedSharding(Mesh(devices.reshape(4, 2), ("data", "tensor")), spec)
  x = np.arange(64 * 6).reshape(64, 6)
  expected = jax.device_put(x, sharding)
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  array = from_local_rows(sharding, np.arange(64), x, 64)
  assert array.sharding == expected.sharding
  assert (np.asarray(array) == x).all()


# Kernels


@pytest.mark.parametrize(
  "mesh", [dict(fsdp=8), dict(data=2, fsdp=2, tensor=2), dict(fsdp=4, sequence=2)], ids=str
)
def test_matmul_on_a_mesh_equals_one_device(mesh):
  """The gradient of the kernel has the sharding of the kernel."""
  rules = make_rules(**mesh)
  generator = np.random.default_rng(0)
  x = generator.standard_normal((8, 4, 16)).astype(np.float32)
  kernel = generator.standard_normal((16, 32)).astype(np.float32)
  g = generator.standard_normal((8, 4, 32)).astype(np.float32)
  axes = ("embed", "mlp")

  def gradients(x, kernel, g):
    y, vjp = jax.vjp(lambda x, kernel: matmul(x, kernel, jnp.float32, axes), x, kernel)
    return y, *vjp(g)

  @jax.jit
  def run(x, kernel, g):
    with rules.activate():
      return gradients(x, kernel, g)

  tokens = rules.sharding(("batch", "length", None))
  args = jax.device_put((x, kernel, g), (tokens, rules.sharding(axes), tokens))
  actual = run(*args)
  assert_trees_close(actual, jax.jit(gradients)(x, kernel, g), rtol=1e-5, atol=1e-5)
  assert actual[2].sharding.is_equivalent_to(rules.sharding(axes), 2)
  program = run.lower(*args).compile().as_text()
  assert "reduce-scatter" in program
  assert "all-gather" in program
  # The kernel is gathered along `embed` only, so it is never whole if `tensor` splits it.
  gathers_all = re.search(r"f32\[16,32\]\S* all-gather", program) is not None
  assert gathers_all == ("tensor" not in mesh)
  # XLA's CPU compiler crashes on 16-bit sums in a `shard_map`, which `Rules` works around.
  low = run(args[0].astype(jnp.bfloat16), args[1], args[2])
  np.testing.assert_allclose(low[2], actual[2], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("mesh, gathers", [(dict(fsdp=8), 1), (dict(fsdp=4, tensor=2), 3)], ids=str)
def test_layers_with_a_common_input_gather_their_kernels_together(mesh, gathers):
  """The outputs equal those of separate calls; FSDP splits the kernels."""
  rules = make_rules(**mesh)
  layers = [
    Linear((16, width), ("embed", axis), params.fan_in_normal(16), nnx.Rngs(seed), bias=seed == 1)
    for seed, (width, axis) in enumerate([(32, "heads"), (8, "kv_heads"), (8, "kv_heads")])
  ]
  shardings = jax.tree.map(lambda p: rules.sharding(p.axes), layers, is_leaf=params.is_param)
  x = np.random.default_rng(0).standard_normal((8, 4, 16)).astype(np.float32)

  def outputs(layers, x):
    with rules.activate():
      return apply_jointly(layers, x)

  def outputs_of_each(layers, x):
    return [layer(x) for layer in layers]

  def gradients(run):
    def loss(layers, x):
      return sum(jnp.sum(jnp.sin(y)) for y in run(layers, x))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))

  arguments = jax.device_put((layers, x), (shardings, rules.sharding(("batch", "length", None))))
  actual = gradients(outputs)(*arguments)
  expected = gradients(outputs_of_each)(layers, x)
  assert_trees_close(actual, expected, rtol=1e-5, atol=1e-5)
  assert jax.jit(outputs).lower(*arguments).as_text().count("dot_general") == gathers


def test_token_table_is_gathered_in_bfloat16_and_its_gradient_is_summed_in_float32():
  """Each device has 512 tokens and the table has 8 rows, so gathering the table moves less data
  than exchanging vectors."""
  rules = make_rules(fsdp=8)
  embed = Embed(8, 16, nnx.Rngs(0), init=params.normal(1.0))
  ids = np.random.default_rng(0).integers(0, 8, (64, 64), np.int32)

  def run(table, ids):
    with rules.activate():
      return params.with_arrays(embed, {"table": table})(ids, jnp.bfloat16)

  def gradient(table, ids):
    return jax.grad(lambda table: jnp.sum(run(table, ids).astype(jnp.float32)))(table)

  table = embed.table[...]
  arguments = jax.device_put((table, ids), (rules.sharding(("vocab", "embed")), rules.batch()))
  vectors = np.asarray(table.astype(jnp.bfloat16))[ids]
  np.testing.assert_array_equal(jax.jit(run)(*arguments), vectors)
  counts = np.bincount(ids.ravel(), minlength=8)[:, None] * np.ones(16)
  np.testing.assert_allclose(jax.jit(gradient)(*arguments), counts, rtol=2**-8)
  assert re.search(r"sharding_constraint.*<8x16xbf16>", jax.jit(run).lower(*arguments).as_text())


@pytest.mark.parametrize(
  "mesh, lengths", [(dict(fsdp=8), (2, 4)), (dict(data=2, fsdp=4), (2, 2))], ids=str
)
def test_staged_exchange_equals_one_all_to_all(mesh, lengths, monkeypatch):
  """Each stage is an all-to-all along one dimension of a torus."""
  rules = make_rules(**mesh)
  positions = np.arange(np.prod(lengths)).reshape(lengths)
  groups = [np.moveaxis(positions, i, -1).reshape(-1, n).tolist() for i, n in enumerate(lengths)]
  monkeypatch.setattr(rules_module, "exchange_stages", lambda mesh, axis: groups)
  x, g = np.random.default_rng(0).standard_normal((2, 16, 3, 32)).astype(np.float32)

  @jax.jit
  def run(x, g):
    with rules.activate():
      axes = ("batch", "length", "embed"), ("batch", "length", None)
      y, vjp = jax.vjp(lambda x: exchange(x, *axes), x)
      return y, *vjp(g)

  arguments = jax.device_put((x, g), rules.sharding(("batch",)))
  y, dx = run(*arguments)
  np.testing.assert_array_equal(y, x)
  np.testing.assert_array_equal(dx, g)
  assert y.sharding.is_equivalent_to(rules.sharding(("batch", None, None)), 3)
  assert run.lower(*arguments).as_text().count("all_to_all") >= 4


class TorusDevice:
  def __init__(self, *coords):
    self.coords = coords


def make_torus(*sizes):
  """Return the devices of a torus in row-major order of their coordinates."""
  return [TorusDevice(*coords) for coords in np.ndindex(*sizes)]


def test_torus_has_a_stage_for_each_dimension():
  """All stages together leave each device with the same part as a single scatter."""

  def mesh(devices):
    return Mesh(np.array(devices), AXES[1 : 1 + np.array(devices).ndim])

  torus = make_torus(2, 4, 1)
  assert exchange_stages(mesh(jax.devices()), "data") == [None]
  assert exchange_stages(mesh(torus[:4]), "data") == [None]
  stages = exchange_stages(mesh(torus), "data")
  assert stages == [[[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]]
  assert len(exchange_stages(mesh(make_torus(2, 2, 2)), "data")) == 3
  assert exchange_stages(mesh(np.array(torus).reshape(2, 4)), "fsdp") == [None]
  # An odd dimension is joined with its neighbour.
  stages_of_threes = exchange_stages(mesh(make_torus(3, 4, 2)), "data")
  assert [len(groups[0]) for groups in stages_of_threes] == [12, 2]

  def scatter(x, groups):
    for group in groups:
      x = jax.lax.psum_scatter(x, "data", tiled=True, axis_index_groups=group)
    return x

  spec = PartitionSpec("data")
  specs = dict(mesh=mesh(jax.devices()), in_specs=spec, out_specs=spec, check_vma=False)
  x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)

  def run(groups):
    return jax.shard_map(lambda x: scatter(x, groups), **specs)(x)

  np.testing.assert_allclose(run(stages), run([None]), rtol=1e-5)
