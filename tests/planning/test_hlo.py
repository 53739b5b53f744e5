"""Compiled programs are parsed: trip counts of loops, devices and bytes of collectives, FLOPs."""
# ruff: noqa: E501 -- lines of HLO are as the compiler prints them

import pathlib

import pytest

from t5x_like.planning import products, roofline
from t5x_like.planning.collectives import collectives
from t5x_like.planning.hlo import Program, arrays, elements, type_bytes

CONDITION = """
%cond (p: (s32[], f32[8])) -> pred[] {
  %bound = s32[]{:T(128)} constant(BOUND)
  %p = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(SIDES), direction=DIRECTION
}
"""
BODY = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (p.1: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.1 = (s32[], f32[8]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %x = f32[8]{0:T(8,128)} get-tuple-element(%p.1), index=1
  %step = s32[] constant(STEP)
  %next = s32[] add(%i.1, %step)
  %reduced = f32[8]{0} all-reduce(%x), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %out = (s32[], f32[8]{0}) tuple(%next, %reduced)
}
"""
ENTRY = """
ENTRY %main (x.1: f32[8]) -> f32[8] {
  %x.1 = f32[8]{0} parameter(0)
  %start = s32[] constant(START)
  %made = (s32[], f32[8]{0}) tuple(%start, %x.1)
  %loop = (s32[], f32[8]{0}) while(%made), condition=%cond, body=%body, metadata={op_name="jit(f)/while"}TRIPS
  ROOT %got = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def loop_program(start=0, bound=10, step=1, direction="LT", sides="%i, %bound", trips=""):
  text = "HloModule jit_f, is_scheduled=true\n" + CONDITION + BODY + ENTRY
  values = {
    "START": start,
    "BOUND": bound,
    "STEP": step,
    "DIRECTION": direction,
    "SIDES": sides,
    "TRIPS": trips,
  }
  for name, value in values.items():
    text = text.replace(name, str(value))
  return text


@pytest.mark.parametrize(
  "changes, trips",
  [
    ({}, 10),
    ({"start": 3}, 7),
    ({"step": 4}, 3),
    ({"direction": "LE"}, 11),
    ({"direction": "GT", "sides": "%bound, %i"}, 10),
    ({"start": 9, "bound": 0, "step": -1, "direction": "GE"}, 10),
    ({"start": 9, "bound": 0, "step": -3, "direction": "GT"}, 3),
    ({"direction": "NE"}, 10),
    ({"bound": 0}, 0),
    ({"trips": ', backend_config={"known_trip_count":{"n":"6"}}'}, 6),
  ],
)
def test_loops_are_multiplied_by_their_iterations(changes, trips):
  program = Program(loop_program(**changes))
  assert program.executions["body"] == trips
  assert not program.unknown
  rows = collectives(program, {"data": 4})
  if trips == 0:
    assert not rows
  else:
    (row,) = rows
    array_bytes = 8 * 4  # f32[8]
    assert row.count == trips
    assert row.bytes == trips * array_bytes
    assert row.ring_bytes == trips * array_bytes * 2 * 3 / 4  # all-reduce around 4 devices


def test_a_loop_of_unknown_length_counts_once_and_is_listed():
  text = loop_program().replace("constant(10)", "get-tuple-element(%p), index=0")
  program = Program(text)
  assert program.executions["body"] == 1
  assert program.unknown == ["loop"]


def test_trip_counts_of_nested_loops_multiply():
  inner = CONDITION + BODY.replace("STEP", "1").replace("START", "0")
  inner = inner.replace("BOUND", "5").replace("SIDES", "%i, %bound").replace("DIRECTION", "LT")
  text = (
    inner
    + """
%fused (a.2: s32[]) -> pred[] {
  %a.2 = s32[] parameter(0)
  %c.2 = s32[] constant(3)
  ROOT %r.2 = pred[] compare(%a.2, %c.2), direction=LT
}

%outer_cond (p.2: (s32[], f32[8])) -> pred[] {
  %p.2 = (s32[], f32[8]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%p.2), index=0
  ROOT %f.2 = pred[] fusion(%i.2), kind=kLoop, calls=%fused
}

%outer_body (p.3: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p.3 = (s32[], f32[8]{0}) parameter(0)
  %i.3 = s32[] get-tuple-element(%p.3), index=0
  %x.3 = f32[8]{0} get-tuple-element(%p.3), index=1
  %one.3 = s32[] constant(1)
  %zero.3 = s32[] constant(0)
  %made.3 = (s32[], f32[8]{0}) tuple(%zero.3, %x.3)
  %loop.3 = (s32[], f32[8]{0}) while(%made.3), condition=%cond, body=%body
  %x.4 = f32[8]{0} get-tuple-element(%loop.3), index=1
  %next.3 = s32[] add(%i.3, %one.3)
  ROOT %out.3 = (s32[], f32[8]{0}) tuple(%next.3, %x.4)
}

ENTRY %main (x.5: f32[8]) -> (s32[], f32[8]) {
  %x.5 = f32[8]{0} parameter(0)
  %zero.5 = s32[] constant(0)
  %made.5 = (s32[], f32[8]{0}) tuple(%zero.5, %x.5)
  ROOT %loop.5 = (s32[], f32[8]{0}) while(%made.5), condition=%outer_cond, body=%outer_body
}
"""
  )
  program = Program(text)
  assert program.executions["outer_body"] == 3
  assert program.executions["body"] == 15


def entry_program(*lines):
  return (
    "HloModule m\n\nENTRY %main (x: bf16[16,4]) -> bf16[16,4] {\n  " + "\n  ".join(lines) + "\n}\n"
  )


MESH = {"data": 2, "fsdp": 4, "tensor": 2}


@pytest.mark.parametrize(
  "groups, axes, size",
  [
    ("{{0,2,4,6},{1,3,5,7},{8,10,12,14},{9,11,13,15}}", "fsdp", 4),
    ("{{0,1},{2,3},{4,5},{6,7},{8,9},{10,11},{12,13},{14,15}}", "tensor", 2),
    ("{}", "data+fsdp+tensor", 16),
    ("[1,16]<=[16]", "data+fsdp+tensor", 16),
    ("[8,2]<=[16]", "tensor", 2),
    ("[4,4]<=[2,4,2]T(0,2,1)", "fsdp", 4),
    ("[2,8]<=[8,2]T(1,0)", "data+fsdp", 8),
    ("mesh['a'=2,'b'=4,'c'=2] {'b'}", "fsdp", 4),
    ("mesh['a'=2,'b'=4,'c'=2] {'a','b'}", "data+fsdp", 8),
    ("mesh['axis_0'=16] {'axis_0'}", "data+fsdp+tensor", 16),
    ("mesh['axis_0'=16] {'axis_0':(8)2}", "tensor", 2),
    ("mesh['axis_0'=16] {'axis_0':(2)4}", "fsdp", 4),
    ("{{0,2},{4,6},{1,3},{5,7},{8,10},{12,14},{9,11},{13,15}}", "part of fsdp", 2),
  ],
)
def test_replica_groups_are_mapped_to_mesh_axes(groups, axes, size):
  text = entry_program(
    "%x = bf16[16,4]{1,0} parameter(0)",
    f"ROOT %y = bf16[64,4]{{1,0}} all-gather(%x), replica_groups={groups}, dimensions={{0}}",
  )
  (row,) = collectives(Program(text), MESH)
  assert row.axes == axes
  assert row.devices == size
  assert row.bytes == 64 * 4 * 2
  assert row.ring_bytes == pytest.approx(512 * (size - 1) / size)


def test_ring_bytes_of_every_kind_of_collective():
  groups = "replica_groups=[4,4]<=[16], "
  text = entry_program(
    "%x = bf16[16,4]{1,0} parameter(0)",
    f"%a = bf16[64,4]{{1,0}} all-gather(%x), {groups}dimensions={{0}}",
    f"%b = (bf16[16,4]{{1,0}}, f32[8]{{0}}) all-reduce(%x, %f), {groups}to_apply=%add",
    f"%c = bf16[4,4]{{1,0}} reduce-scatter(%x), {groups}dimensions={{0}}, to_apply=%add",
    f"%d = bf16[16,4]{{1,0}} all-to-all(%x), {groups}dimensions={{0}}",
    "%e = bf16[16,4]{1,0} collective-permute(%x), source_target_pairs={{0,3},{1,0},{2,1},{3,2}}",
    f"%g = (bf16[16,4]{{1,0}}, bf16[64,4]{{1,0}}, u32[]) all-gather-start(%x), "
    f"{groups}dimensions={{0}}",
    "%h = bf16[64,4]{1,0} all-gather-done(%g)",
    "%f = f32[8]{0} parameter(1)",
  )
  rows = {}
  for row in collectives(Program(text), {"fsdp": 4, "tensor": 4}):
    rows[row.kind, row.asynchronous] = row
  assert {key: row.ring_bytes for key, row in rows.items()} == {
    ("all-gather", False): 512 * 3 / 4,
    ("all-gather", True): 512 * 3 / 4,
    ("all-reduce", False): 2 * (128 + 32) * 3 / 4,
    ("reduce-scatter", False): 128 * 3 / 4,
    ("all-to-all", False): 128 * 3 / 4,
    ("collective-permute", False): 128,
  }
  assert rows["all-gather", True].count == 1
  assert rows["collective-permute", False].group == [1, 0]  # the link that is timed


def test_bytes_that_a_tpu_program_sends_are_counted_once():
  """Lines of a program for v5e: an asynchronous gather, printed twice, and a fused
  reduce-scatter."""
  text = pathlib.Path(__file__).with_name("asynchronous.hlo").read_text()
  rows = {row.kind: row for row in collectives(Program(text), {"fsdp": 16})}
  assert rows["all-gather"].asynchronous
  assert rows["all-gather"].count == 1
  assert rows["all-gather"].ring_bytes == 256 * 64 * 2 * 15 / 16
  assert rows["reduce-scatter"].ring_bytes == 64 * 4 * 4 * 15 / 16
  assert rows["all-reduce"].ring_bytes == 2 * 64 * 4 * 4 * 15 / 16
  assert rows["all-reduce"].where == "jit(step)/sum"


def test_a_collective_on_the_sparse_cores_counts_in_every_iteration():
  """As the TPU compiler prints it: within a custom call, within an asynchronous computation."""
  sparse = """
%called (p.9: bf16[256,64]) -> bf16[4096,64] {
  %p.9 = bf16[256,64]{1,0} parameter(0)
  ROOT %all-gather.6 = bf16[4096,64]{1,0} all-gather(%p.9), channel_id=2, replica_groups={}, dimensions={0}
}, execution_thread="sparsecore"

%async (p.8: bf16[256,64]) -> bf16[4096,64] {
  %p.8 = bf16[256,64]{1,0} parameter(0)
  ROOT %custom-call.2 = bf16[4096,64]{1,0} custom-call(%p.8), custom_call_target="TODO", called_computations={%called}
}, execution_thread="sparsecore"
"""
  start = """%s = ((), (), (s32[8]{0})) async-start(), async_execution_thread="sparsecore", calls=%async
  %u = ((bf16[256,64]{1,0}), bf16[4096,64]{1,0}) async-update(%s, %x), calls=%async
  %d = bf16[4096,64]{1,0} async-done(%u)
  %next = s32[] add"""
  text = (
    loop_program(bound=8).replace("\n%body", sparse + "\n%body").replace("%next = s32[] add", start)
  )
  gathers = [row for row in collectives(Program(text), {"fsdp": 16}) if row.kind == "all-gather"]
  assert [(row.asynchronous, row.count, row.ring_bytes) for row in gathers] == [
    (True, 8, 8 * 4096 * 64 * 2 * 15 / 16)
  ]


def test_types_are_split_and_measured():
  printed = "(bf16[2,4]{1,0:T(8,128)(2,1)S(1)}, u32[], (s4[8], pred[3]))"
  assert arrays(printed) == [("bf16", (2, 4)), ("u32", ()), ("s4", (8,)), ("pred", (3,))]
  assert elements(printed) == ["bf16[2,4]{1,0:T(8,128)(2,1)S(1)}", "u32[]", "(s4[8], pred[3])"]
  assert type_bytes(printed) == 16 + 4 + 4 + 3
  assert type_bytes("f8e4m3fn[10]{0}") == 10


@pytest.mark.parametrize(
  "line, flops",
  [
    ("dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 8 * 6 * 4),
    ("convolution(%a, %b), dim_labels=bf_io->bf", 2 * 8 * 6 * 4),
    ("convolution(%a, %b), window={size=1}, dim_labels=bf_io->bf", 2 * 8 * 6 * 4),
  ],
)
def test_flops_of_products(line, flops):
  text = entry_program(
    "%a = f32[8,4]{1,0} parameter(0)",
    "%b = f32[4,6]{1,0} parameter(1)",
    f"ROOT %y = f32[8,6]{{1,0}} {line}",
  )
  assert products.flops(Program(text)) == flops


def test_products_of_a_fast_dtype_take_half_the_time():
  lines = [
    "%a = s8[8,4]{1,0} parameter(0)",
    "%b = s8[4,6]{1,0} parameter(1)",
    "%c = bf16[4,6]{1,0} parameter(2)",
    "%y = s32[8,6]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "ROOT %z = f32[8,6]{1,0} convolution(%a, %c), dim_labels=bf_io->bf",
  ]
  program = Program(entry_program(*lines))
  one_product = 2 * 8 * 6 * 4
  assert products.flops(program, "") == 2 * one_product
  assert products.flops(program, "f8") == 2 * one_product
  assert products.flops(program, "s8") == 1.5 * one_product
  assert roofline.seconds(program, 1.0, 1e12, "s8") == 1.5 * one_product


def test_flops_leave_out_padding_and_dilation():
  text = entry_program(
    "%a = f32[1,5,3]{2,1,0} parameter(0)",
    "%b = f32[3,3,7]{2,1,0} parameter(1)",
    "%same = f32[1,5,7]{2,1,0} convolution(%a, %b), window={size=3 pad=1_1}, "
    "dim_labels=b0f_0io->b0f",
    "%up = f32[1,9,7]{2,1,0} convolution(%a, %b), window={size=3 pad=1_1 lhs_dilate=2}, "
    "dim_labels=b0f_0io->b0f",
  )
  # 13 pairs of a position and a tap in both
  assert products.flops(Program(text)) == 2 * 3 * 7 * (13 + 13)


def test_a_kernels_flops_are_read_from_its_cost_estimate_or_its_scope():
  kernel = (
    'custom-call(%x), custom_call_target="tpu_custom_call", '
    'ATTRIBUTESbackend_config={"custom_call_config":{"body":"TUz"}}'
  )
  text = loop_program(bound=7).replace(
    "%next = s32[] add", f"%kernel = f32[8]{{0}} {kernel}\n  %next = s32[] add"
  )
  assert products.kernels(Program(text)) == (0, 7)
  assert products.flops(Program(text)) == 0
  with_estimate = text.replace('{"body"', '{"cost_estimate":{"flops":"30"},"body"')
  assert products.kernels(Program(with_estimate)) == (210, 0)
  # As the TPU compiler prints it: JSON over several lines before the name.
  scope = (
    'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{}"\n}}, '
    'metadata={op_name="f/kernel_flops_30/NAME"}, '
  )
  for name, flops in (
    ("jit(s)/splash_mha_fwd_residuals/call", 210),
    ("splash_mha_dq", 315),
    ("splash_mha_dkv", 420),
  ):
    assert products.kernels(Program(text.replace("ATTRIBUTES", scope.replace("NAME", name)))) == (
      flops,
      0,
    )


def test_ragged_products_cost_one_product_a_row_and_no_cycles():
  """The TPU compiler prints a product of every row with every group's matrix, and its cycles may be
  2^63 - 1."""
  name = 'metadata={op_name="jit(f)/ragged_dot_general"}'
  window = "size=4 stride=3 lhs_dilate=4"
  config = '{"is_ragged_dot":true,"estimated_cycles":"9223372036854775807"}'
  text = f"""HloModule m

%fused (a: bf16[4,64,16], b: bf16[4,16,32]) -> bf16[4,64,32] {{
  %a = bf16[4,64,16]{{2,1,0}} parameter(0)
  %b = bf16[4,16,32]{{2,1,0}} parameter(1)
  ROOT %y = bf16[4,64,32]{{2,1,0}} convolution(%a, %b), window={{{window}}}, dim_labels=0bf_0io->0bf, {name}
}}

ENTRY %main (x: bf16[4,64,16], w: bf16[4,16,32]) -> bf16[4,64,32] {{
  %x = bf16[4,64,16]{{2,1,0}} parameter(0)
  %w = bf16[4,16,32]{{2,1,0}} parameter(1)
  ROOT %z = bf16[4,64,32]{{2,1,0}} fusion(%x, %w), kind=kOutput, calls=%fused, {name}, backend_config={config}
}}
"""
  program = Program(text)
  assert products.kernels(program) == (2 * 64 * 16 * 32, 0)
  assert products.flops(program) == 0
  assert products.cycles(program) == 0
  unknown = text.replace('"is_ragged_dot":true,', "")  # as it prints some asynchronous copies too
  assert products.cycles(Program(unknown)) == 0
  assert products.cycles(Program(unknown.replace(str(2**63 - 1), "500"))) == 500


def test_the_roofline_counts_bytes_that_cross_the_memory():
  """A slice costs its size, an update in place its update, and arrays in the core's memory
  nothing."""
  text = """HloModule m

%sliced (p: f32[100,64], i: s32[]) -> f32[1,64] {
  %p = f32[100,64]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %s = f32[1,64]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,64}
}

%updated (q: f32[100,64], u: f32[1,64], j: s32[]) -> f32[100,64] {
  %q = f32[100,64]{1,0} parameter(0)
  %u = f32[1,64]{1,0} parameter(1)
  %j = s32[] parameter(2)
  ROOT %d = f32[100,64]{1,0} dynamic-update-slice(%q, %u, %j, %j)
}

ENTRY %main (x: f32[100,64], at: s32[]) -> f32[100,64] {
  %x = f32[100,64]{1,0} parameter(0)
  %at = s32[]{:S(2)} parameter(1)
  %row = f32[1,64]{1,0} fusion(%x, %at), kind=kLoop, calls=%sliced
  %near = f32[1,64]{1,0:T(8,128)S(1)} copy(%row)
  ROOT %out = f32[100,64]{1,0} fusion(%x, %near, %at), kind=kLoop, calls=%updated
}
"""
  row = 4 * 64
  assert roofline.seconds(Program(text), peak=1e12, bandwidth=1.0) == 2 * row + row + row
  product = entry_program(
    "%x = bf16[16,4]{1,0} parameter(0)",
    "%w = bf16[4,4]{1,0} parameter(1)",
    "ROOT %y = bf16[16,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
  )
  assert roofline.seconds(Program(product), peak=1.0, bandwidth=1.0) == 2 * 16 * 4 * 4
  assert roofline.seconds(Program(product), peak=1e12, bandwidth=2.0) == (128 + 32 + 128) / 2


def test_a_gather_around_one_ring_is_recognised():
  text = entry_program(
    "%x = bf16[16,4]{1,0} parameter(0)",
    "ROOT %y = bf16[64,4]{1,0} all-gather(%x), replica_groups={}, dimensions={0},"
    ' backend_config={"collective_algorithm_config":{"emitter":"1DAllGatherNonMajorDim"}}',
  )
  (row,) = collectives(Program(text), MESH)
  assert row.ring
  (row,) = collectives(Program(text.replace("1DAll", "2DAll")), MESH)
  assert not row.ring


@pytest.mark.parametrize(
  "kind, times_sent",
  [("ALL_REDUCE", 3 / 2), ("ALL_GATHER", 3), ("ALL_TO_ALL", 3 / 4), ("ONE_TO_ONE", 1)],
)
def test_transfers_between_slices_are_counted(kind, times_sent):
  """Four slices of four devices: the compiler prints what each device hands to its host."""
  attributes = f'_xla_megascale_target="{{1,2,3,4}}x{{0:3}}",_xla_megascale_transfer_type="{kind}"'
  text = entry_program(
    "%x = bf16[16,4]{1,0} parameter(0)",
    "%t = token[] after-all()",
    "%s = (bf16[16,4]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}, token[]) send(%x, %t), channel_id=4, "
    "is_host_transfer=true,"
    f' frontend_attributes={{_xla_host_transfer_handler_name="xla_megascale_runtime",{attributes}}}',
    "ROOT %w = bf16[16,4] copy(%x)",
  )
  (row,) = collectives(Program(text), {"replica": 4, "fsdp": 2, "tensor": 2})
  assert row.axes == "replica"
  assert row.devices == 4
  assert row.asynchronous
  assert row.ring_bytes == times_sent * 16 * 4 * 2  # bf16[16,4]
  assert row.kind in ("collective-permute", kind.lower().replace("_", "-"))
  assert row.group == [0, 4, 8, 12]


@pytest.mark.parametrize("sent, into", [(100, 125), (125, 100)], ids=["dispatch", "combine"])
def test_a_ragged_all_to_all_counts_its_output_operand_as_not_sent(sent, into):
  """The array that rows are written into is an operand, but stays where it is."""
  text = f"""HloModule m

ENTRY %main (x: bf16[{sent},8], into: bf16[{into},8], sizes: s32[4]) -> bf16[{into},8] {{
  %x = bf16[{sent},8]{{1,0}} parameter(0)
  %into = bf16[{into},8]{{1,0}} parameter(1)
  %sizes = s32[4]{{0}} parameter(2)
  ROOT %out = bf16[{into},8]{{1,0}} ragged-all-to-all(%x, %into, %sizes, %sizes, %sizes, %sizes), GROUPS
}}
""".replace("GROUPS", "channel_id=1, replica_groups={{0,1,2,3}}")
  (row,) = collectives(Program(text), {"expert": 4})
  assert row.bytes == 100 * 8 * 2
  assert row.ring_bytes == 100 * 8 * 2 * 3 / 4
