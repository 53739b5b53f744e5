"""Logical axes become shardings; sizes that do not divide are refused by name in one line."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import tiny
from t5x_like.errors import UserError
from t5x_like.nn import params
from t5x_like.nn.embed import Embed
from t5x_like.nn.linear import Linear, apply_jointly, matmul
from t5x_like.parallel import rules as rules_module
from t5x_like.parallel.constrain import constrain, exchange
from t5x_like.parallel.mesh import AXES, exchange_stages, make_mesh
from t5x_like.parallel.rules import DEFAULT, Rules, from_local_rows, local_rows


def rules(changes=None, **mesh):
  return Rules.make(
    make_mesh(mesh, jax.devices()[: int(np.prod(list(mesh.values()), initial=1))]), changes
  )


def make_parameter(**sizes):
  make = tiny.maker(tiny.sizes("1.1", **sizes), vocab_size=64)
  return params.named_params(jax.eval_shape(make, jax.random.key(0)))


def refusal_of(do, *arguments, **named_arguments):
  with pytest.raises(UserError) as caught:
    do(*arguments, **named_arguments)
  message = str(caught.value)
  assert "\n" not in message
  assert len(message) < 300
  return message


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
  "sizes, message_part",
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
def test_meshes_that_do_not_fit_are_refused(sizes, message_part):
  message = refusal_of(make_mesh, sizes)
  assert all(part in message for part in message_part), message


# Rules


def test_logical_axes_become_partition_specs():
  r = rules(data=2, fsdp=2, tensor=2)
  assert r.spec(("layers", "embed", "mlp")) == PartitionSpec(None, "fsdp", "tensor")
  assert r.spec(("vocab", "embed")) == PartitionSpec("tensor", "fsdp")
  assert r.spec((None,)) == PartitionSpec(None)
  assert r.batch().spec == PartitionSpec(("data", "fsdp"))
  assert r.spec(("batch", "length", "activation_mlp")) == PartitionSpec(
    ("data", "fsdp"), None, "tensor"
  )
  # a mesh axis cuts one array once
  assert r.spec(("mlp", "heads")) == PartitionSpec("tensor", None)
  assert (r.ways("batch"), r.ways("mlp"), r.ways("layers")) == (4, 2, 1)


def test_a_recipe_changes_rules():
  r = rules({"embed": ("fsdp", "data"), "mlp": None, "vocab": "data"}, data=2, fsdp=2, tensor=2)
  assert r.spec(("embed", "mlp")) == PartitionSpec(("fsdp", "data"), None)
  assert r.spec(("vocab", "embed")) == PartitionSpec("data", "fsdp")
  assert rules(fsdp=8).table == DEFAULT


def test_unknown_names_are_refused_with_the_nearest():
  message = refusal_of(rules, {"embd": "fsdp"}, fsdp=8)
  assert "rules.embd" in message
  assert "did you mean 'embed'?" in message
  message = refusal_of(rules, {"embed": "fspd"}, fsdp=8)
  assert "rules.embed" in message
  assert "'fspd'" in message
  assert "did you mean 'fsdp'?" in message


def test_tensor_must_divide_whole_heads():
  """6 heads of 64 are 384 numbers, which 4 divides; but a head may not be cut."""
  message = refusal_of(
    rules(data=2, tensor=4).param_shardings, make_parameter(heads=6, head_dim=64, embed=64, mlp=64)
  )
  for part in (
    "attention/layer/",
    "/kernel",
    "heads",
    "6 ",
    "width 64",
    "tensor",
    "into 4",
    "rules.",
  ):
    assert part in message, (part, message)
  split = rules(tensor=2).param_shardings(make_parameter(heads=6, head_dim=64, embed=64, mlp=64))
  assert split["encoder/blocks/self_attention/layer/query/kernel"].spec == PartitionSpec(
    None, None, "tensor"
  )
  assert split["encoder/blocks/self_attention/layer/out/kernel"].spec == PartitionSpec(
    None, "tensor", None
  )
  assert split["encoder/position/table"].spec == PartitionSpec(None, "tensor")


def test_other_axes_that_do_not_divide_are_refused_by_name():
  message = refusal_of(rules(fsdp=8).param_shardings, make_parameter(embed=20))
  assert "embed" in message
  assert "20 embed" in message
  assert "embed->fsdp" in message
  assert "into 8" in message
  assert "rules.embed=None" in message
  message = refusal_of(
    rules({"embed": None}, tensor=8).param_shardings, make_parameter(heads=8, mlp=36)
  )
  assert "mlp" in message
  assert "36 mlp" in message
  assert "into 8" in message
  message = refusal_of(
    rules({"embed": ("fsdp", "data")}, data=2, fsdp=4).param_shardings, make_parameter(embed=12)
  )
  assert "fsdp+data" in message
  assert "into 8" in message


def test_every_parameter_is_cut_by_fsdp_and_tensor_except_vectors():
  shardings = rules(fsdp=4, tensor=2).param_shardings(make_parameter())
  for name, p in make_parameter().items():
    local = np.prod(shardings[name].shard_shape(p.shape))
    ways = 1 if "scale" in name else 2 if "position" in name else 8
    assert local * ways == np.prod(p.shape), name


# Activations


def test_constrain_pins_a_sharding_only_under_rules():
  x = jnp.ones((8, 4, 16))
  assert constrain(x, "batch", "length", "activation_mlp") is x
  r = rules(data=2, fsdp=2, tensor=2)

  @jax.jit
  def run(x):
    with r.activate():
      return constrain(x, "batch", "length", "activation_mlp"), constrain(
        x[:3], "batch", None, "activation_mlp"
      )

  replicated, odd = run(jax.device_put(x, r.replicated))
  assert replicated.sharding.spec == PartitionSpec(("data", "fsdp"), None, "tensor")
  # three rows cannot be cut into four: left whole
  assert odd.sharding.shard_shape(odd.shape) == (3, 4, 8)
  assert constrain(x, "batch", "length", "activation_mlp") is x


# The rows of a process


def test_a_process_reads_the_rows_of_its_devices():
  assert local_rows(rules(data=4, tensor=2).batch(), 32).tolist() == [*range(32)]


class Elsewhere:
  """Stand in for a sharding as another process sees it, which owns only some devices."""

  def __init__(self, sharding, devices):
    self.sharding = sharding
    self.devices = devices

  def addressable_devices_indices_map(self, shape):
    cuts = self.sharding.devices_indices_map(shape)
    return {d: cuts[d] for d in self.devices}


@pytest.mark.parametrize("process, rows", [(0, [*range(16)]), (1, [*range(16, 32)])])
def test_local_rows_of_two_processes(process, rows):
  mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "tensor"))
  sharding = NamedSharding(mesh, PartitionSpec("data"))
  assert (
    local_rows(
      Elsewhere(sharding, mesh.devices[2 * process : 2 * process + 2].ravel()), 32
    ).tolist()
    == rows
  )
  replicated = NamedSharding(mesh, PartitionSpec())
  assert local_rows(Elsewhere(replicated, mesh.devices[:2].ravel()), 32).tolist() == [*range(32)]


@pytest.mark.parametrize(
  "axes", [{"data": 8}, {"data": 4, "tensor": 2}, {"data": 2, "fsdp": 4}, {"fsdp": 8}]
)
def test_rows_of_hosts_on_a_torus_are_sets_that_cover_the_batch(axes):
  devices = np.array(jax.devices())
  mesh = Mesh(
    devices[np.random.default_rng(0).permutation(8)].reshape(tuple(axes.values())), tuple(axes)
  )
  sharding = NamedSharding(mesh, PartitionSpec(tuple(a for a in axes if a != "tensor")))
  shards = sharding.devices_indices_map((32,))
  hosts_by_row = {}
  for host in range(4):
    host_devices = devices[2 * host : 2 * host + 2]
    rows = local_rows(Elsewhere(sharding, host_devices), 32)
    assert (np.diff(rows) > 0).all()
    host_rows = {row for device in host_devices for row in range(*shards[device][0].indices(32))}
    assert set(rows.tolist()) == host_rows
    hosts_by_row[host] = host_rows
  assert set().union(*hosts_by_row.values()) == set(range(32))


@pytest.mark.parametrize(
  "spec", [PartitionSpec("data"), PartitionSpec("data", "tensor"), PartitionSpec()]
)
def test_global_arrays_from_sets_of_rows(spec, monkeypatch):
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
def test_a_matmul_on_a_mesh_equals_one_devices(mesh):
  """Its gradient is split as the kernel is."""
  r = rules(**mesh)
  generator = np.random.default_rng(0)
  x = generator.standard_normal((8, 4, 16)).astype(np.float32)
  kernel = generator.standard_normal((16, 32)).astype(np.float32)
  g = generator.standard_normal((8, 4, 32)).astype(np.float32)
  axes = ("embed", "mlp")

  def gradients(x, kernel, g):
    y, pull = jax.vjp(lambda x, kernel: matmul(x, kernel, jnp.float32, axes), x, kernel)
    return y, *pull(g)

  @jax.jit
  def run(x, kernel, g):
    with r.activate():
      return gradients(x, kernel, g)

  tokens = r.sharding(("batch", "length", None))
  args = jax.device_put((x, kernel, g), (tokens, r.sharding(axes), tokens))
  actual = run(*args)
  for gradient, expected in zip(actual, gradients(x, kernel, g), strict=True):
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)
  assert actual[2].sharding.is_equivalent_to(r.sharding(axes), 2)
  program = run.lower(*args).compile().as_text()
  assert "reduce-scatter" in program
  assert "all-gather" in program
  # Of the kernel, gathers are along `embed` alone: neither it nor its gradient is ever whole along
  # `tensor`.
  assert (mesh.get("tensor", 1) == 1) == bool(re.search(r"f32\[16,32\]\S* all-gather", program))
  # which XLA's CPU compiler does not survive by itself
  low = run(args[0].astype(jnp.bfloat16), args[1], args[2])
  np.testing.assert_allclose(low[2], actual[2], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("mesh, gathers", [(dict(fsdp=8), 1), (dict(fsdp=4, tensor=2), 3)], ids=str)
def test_layers_of_one_input_gather_their_kernels_at_once(mesh, gathers):
  """Each computes the same alone; kernels are split by FSDP."""
  r = rules(**mesh)
  layers = [
    Linear((16, width), ("embed", axis), params.fan_in_normal(16), nnx.Rngs(seed), bias=seed == 1)
    for seed, (width, axis) in enumerate([(32, "heads"), (8, "kv_heads"), (8, "kv_heads")])
  ]
  shardings = jax.tree.map(lambda p: r.sharding(p.axes), layers, is_leaf=params.is_param)
  x = np.random.default_rng(0).standard_normal((8, 4, 16)).astype(np.float32)

  def outputs(layers, x):
    with r.activate():
      return apply_jointly(layers, x)

  def gradients(run):
    return jax.grad(
      lambda layers, x: sum(jnp.sum(jnp.sin(y)) for y in run(layers, x)), argnums=(0, 1)
    )

  arguments = jax.device_put((layers, x), (shardings, r.sharding(("batch", "length", None))))
  actual = jax.jit(gradients(outputs))(*arguments)
  expected = gradients(lambda layers, x: [layer(x) for layer in layers])(layers, x)
  for gradient, expected_gradient in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-5)
  assert jax.jit(outputs).lower(*arguments).as_text().count("dot_general") == gathers


def test_a_token_table_is_gathered_in_the_dtype_of_its_vectors_and_its_gradient_summed_in_float32():
  """512 tokens a device of a table of 8 rows: gathering the table moves less than exchanging
  vectors."""
  r = rules(fsdp=8)
  embed = Embed(8, 16, nnx.Rngs(0), init=params.normal(1.0))
  ids = np.random.default_rng(0).integers(0, 8, (64, 64), np.int32)

  def run(table, ids):
    with r.activate():
      return params.with_arrays(embed, {"table": table})(ids, jnp.bfloat16)

  def gradient(table, ids):
    return jax.grad(lambda table: jnp.sum(run(table, ids).astype(jnp.float32)))(table)

  table = embed.table[...]
  arguments = jax.device_put((table, ids), (r.sharding(("vocab", "embed")), r.batch()))
  np.testing.assert_array_equal(
    jax.jit(run)(*arguments), np.asarray(table.astype(jnp.bfloat16))[ids]
  )
  counts = np.bincount(ids.ravel(), minlength=8)[:, None] * np.ones(16)
  np.testing.assert_allclose(jax.jit(gradient)(*arguments), counts, rtol=2**-8)
  assert re.search(r"sharding_constraint.*<8x16xbf16>", jax.jit(run).lower(*arguments).as_text())


@pytest.mark.parametrize(
  "mesh, lengths", [(dict(fsdp=8), (2, 4)), (dict(data=2, fsdp=4), (2, 2))], ids=str
)
def test_an_exchange_in_stages_equals_one_all_to_all(mesh, lengths, monkeypatch):
  """Each stage is an all-to-all along one dimension of a torus."""
  r = rules(**mesh)
  positions = np.arange(np.prod(lengths)).reshape(lengths)
  groups = [np.moveaxis(positions, i, -1).reshape(-1, n).tolist() for i, n in enumerate(lengths)]
  monkeypatch.setattr(rules_module, "exchange_stages", lambda mesh, axis: groups)
  x, g = np.random.default_rng(0).standard_normal((2, 16, 3, 32)).astype(np.float32)

  @jax.jit
  def run(x, g):
    with r.activate():
      y, pull = jax.vjp(
        lambda x: exchange(x, ("batch", "length", "embed"), ("batch", "length", None)), x
      )
      return y, *pull(g)

  arguments = jax.device_put((x, g), r.sharding(("batch",)))
  y, dx = run(*arguments)
  np.testing.assert_array_equal(y, x)
  np.testing.assert_array_equal(dx, g)
  assert y.sharding.is_equivalent_to(r.sharding(("batch", None, None)), 3)
  assert run.lower(*arguments).as_text().count("all_to_all") >= 4


class OnTorus:
  def __init__(self, *coords):
    self.coords = coords


def test_a_torus_has_a_stage_for_each_dimension():
  """After all stages every device has the part that one all-to-all leaves it."""

  def mesh(devices):
    return Mesh(np.array(devices), AXES[1 : 1 + np.array(devices).ndim])

  torus = [OnTorus(x, y, 0) for x in range(2) for y in range(4)]
  assert exchange_stages(mesh(jax.devices()), "data") == [None]
  assert exchange_stages(mesh(torus[:4]), "data") == [None]
  stages = exchange_stages(mesh(torus), "data")
  assert stages == [[[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]]
  assert (
    len(
      exchange_stages(
        mesh([OnTorus(x, y, z) for x in range(2) for y in range(2) for z in range(2)]), "data"
      )
    )
    == 3
  )
  assert exchange_stages(mesh(np.array(torus).reshape(2, 4)), "fsdp") == [None]
  # no sums over 3: joined to the 4
  threes = [OnTorus(x, y, z) for x in range(3) for y in range(4) for z in range(2)]
  assert [len(groups[0]) for groups in exchange_stages(mesh(threes), "data")] == [12, 2]

  def scatter(x, groups):
    for group in groups:
      x = jax.lax.psum_scatter(x, "data", tiled=True, axis_index_groups=group)
    return x

  real = Mesh(np.array(jax.devices()), ("data",))
  spec = PartitionSpec("data")
  x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)

  def run(groups):
    return jax.shard_map(
      lambda x: scatter(x, groups), mesh=real, in_specs=spec, out_specs=spec, check_vma=False
    )(x)

  np.testing.assert_allclose(run(stages), run([None]), rtol=1e-5)
