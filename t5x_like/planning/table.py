"""Print plans as text."""

import shlex
from typing import Any

_GIGA = 1e9
_MEMORY_KINDS = (
  "params",
  "optimizer",
  "batch",
  "arguments",
  "outputs",
  "temporaries",
  "code",
  "total",
  "hbm",
  "host",
)


def text(plan: dict[str, Any]) -> str:
  """Return a printable report of a plan."""
  if "memory" not in plan or "total" not in plan["memory"]:
    return f"{_title(plan)}\n{plan['verdict']}"
  lines = [*_setup_lines(plan), "", *_memory_lines(plan["memory"]), ""]
  if "collectives" in plan:
    lines += [*_collective_lines(plan), "", *_cost_lines(plan), ""]
  if "bill" in plan:
    lines += [f"{_quantity(plan['bill'])}: {_hours(plan['bill'])}", ""]
  return "\n".join([*lines, plan["verdict"]])


def comparison(plans: list[dict[str, Any]]) -> str:
  """Return a printable table of one step's plans on several topologies."""
  header = f"{'topology':<22}{'chips':>7}{'GB':>8}{'seconds':>10}{'MFU':>6}"
  lines = [header]
  for plan in plans:
    name = f"{plan['topology']:<22}"
    if not plan.get("seconds"):
      lines.append(f"{name} {plan['verdict']}")
      continue
    mfu = f"{100 * plan['mfu']:.0f} %" if plan["mfu"] else "-"
    hours = f"  {_hours(plan['bill'])}" if "bill" in plan else ""
    chips = plan["bill"]["chips"] if "bill" in plan else plan["devices"]
    lines.append(
      f"{name}{chips:>7,}{plan['total_gigabytes']:>8.2f}{plan['seconds']['step']:>10.4g}"
      f"{mfu:>6}{hours}"
    )
    if not plan["fits"]:
      lines.append(f"  {plan['verdict']}")
  return "\n".join(lines)


def _quantity(bill: dict[str, Any]) -> str:
  chips = "chip" if bill["chips"] == 1 else "chips"
  return f"{bill['steps']:,} steps on {bill['chips']:,} {chips}"


def _hours(bill: dict[str, Any]) -> str:
  """Describe the hours of a bill, and its price if there is one."""
  hours = f"{bill['hours']:,.4g} h, {bill['chip_hours']:,.4g} chip hours"
  if "price" not in bill:
    return hours
  return f"{hours}, {bill['price']:,.2f} {bill['currency']}"


def _setup_lines(plan: dict[str, Any]) -> list[str]:
  """Describe the model, the devices, the mesh and the batch."""
  rows = plan["rows"]
  mesh = " ".join(f"{axis}={size}" for axis, size in plan["mesh"].items()) or "one device"
  cores = ", ".join(f"{layer}: {name}".replace("_", " ") for layer, name in plan["cores"].items())
  accumulation = f" in {plan['accumulation_steps']} parts" if plan["accumulation_steps"] > 1 else ""
  most_rows = f" to {rows['most']}" if rows["most"] != rows["fewest"] else ""
  return [
    _title(plan),
    f"{plan['model']}: {plan['parameters']:,} parameters; {plan['devices']} x "
    f"{plan['device_kind']}; {mesh}",
    f"batch {plan['batch_size']}{accumulation}; remat {plan['remat']}; {cores}",
    f"rows per host: {rows['fewest']}{most_rows} of {plan['batch_size']} on {rows['hosts']} "
    f"hosts; {rows['ranges']} of the hosts read one range",
  ]


def _memory_lines(memory: dict[str, float | None]) -> list[str]:
  """Describe the bytes of each kind on a device."""
  lines = ["memory, GB a device"]
  notes = {
    "arguments": "  params, optimizer and batch, with the padding of tiles",
    "host": "  in its host's memory",
  }
  for kind in _MEMORY_KINDS:
    if memory[kind] is not None and (memory[kind] or kind != "host"):
      lines.append(f"  {kind:<12}{memory[kind] / _GIGA:>9.3f}{notes.get(kind, '')}")
  return lines


def _collective_lines(plan: dict[str, Any]) -> list[str]:
  """Tabulate the collectives, largest first."""
  lines = [f"{'collectives in a step':<36}{'over':<22}{'times':>7}{'GB':>9}{'ring GB':>9}  "]
  for row in plan["collectives"]:
    marks = []
    if row["asynchronous"]:
      marks.append("async")
    if row["ring"]:
      marks.append("one ring")
    kind = f"{row['kind']} ({', '.join(marks)})" if marks else row["kind"]
    over = f"{row['axes'] or 'other'} ({row['devices']})"
    lines.append(
      "  "
      f"{kind:<34}{over:<22}{row['count']:>7}{row['bytes'] / _GIGA:>9.3f}"
      f"{row['ring_bytes'] / _GIGA:>9.3f}"
    )
  minimum = plan["minimum"]
  lines.append(
    f"  ring bytes {plan['ring_gigabytes']:.1f} GB a device; parameters and gradients need at "
    f"least {plan['minimum_ring_gigabytes']:.1f} ({minimum['gathers'] / _GIGA:.1f} gathers, "
    f"{minimum['reductions'] / _GIGA:.1f} reductions)"
  )
  return lines


def _cost_lines(plan: dict[str, Any]) -> list[str]:
  """Describe the FLOPs of a step, and its time if the chip is known."""
  kernels = f" ({plan['kernel_flops'] / _GIGA:,.2f} in kernels)" if plan["kernel_flops"] else ""
  lines = [
    f"GFLOP a device: model {plan['model_flops'] / plan['devices'] / _GIGA:,.2f}, program "
    f"{plan['hlo_flops'] / _GIGA:,.2f}{kernels}; compiled in {plan['compile_seconds']:.0f} s"
  ]
  if "products" in plan.get("seconds", {}):
    lines += _seconds_lines(plan)
  elif "seconds" in plan:
    lines += ["", *_measured_lines(plan)]
  if plan.get("dearest"):
    lines += ["", "slowest operations: seconds, executions, traced name, type"]
    for operation in plan["dearest"]:
      lines.append(
        f"  {operation['seconds']:>8.4f} {operation['times']:>6,}  {operation['name']}  "
        f"{operation['type']}"
      )
  if plan["options"]:
    options = ", ".join(f"{name}={value}" for name, value in plan["options"].items())
    lines.append(f"  compiled with {options}")
  if plan["dropped"]:
    lines.append(
      "activations not split, as the mesh does not divide their sizes: "
      f"{', '.join(plan['dropped'])}"
    )
  if plan["loops_not_counted"]:
    lines.append(f"loops of unknown length count once: {', '.join(plan['loops_not_counted'])}")
  return lines


def ranking(plans: list[dict[str, Any]]) -> str:
  """Return a printable table of plans, in their order."""
  lines = [f"{'':>4}{'GB':>8}{'ring GB':>9}{'seconds':>9}{'TFLOP/s':>9}{'MFU':>6}  flags"]
  for number, plan in enumerate(plans, 1):
    flags = shlex.join(f"--config.{override}" for override in plan["candidate"])
    if not plan["fits"]:
      lines.append(f"{number:>4}  {flags}: {plan['verdict']}")
      continue
    sent = f"{plan['ring_gigabytes']:.1f}" if "ring_gigabytes" in plan else "-"
    duration = "-"
    mfu = "-"
    speed = "-"
    seconds = plan.get("seconds", {}).get("step")
    if seconds:
      duration = f"{seconds:.3f}"
      mfu = f"{100 * plan['mfu']:.0f} %"
      speed = f"{plan['model_flops'] / seconds / plan['devices'] / 1e12:.1f}"
    lines.append(
      f"{number:>4}{plan['total_gigabytes']:>8.2f}{sent:>9}{duration:>9}{speed:>9}{mfu:>6}  {flags}"
    )
  return "\n".join(lines)


def _title(plan: dict[str, Any]) -> str:
  flags = [f" --config.{override}" for override in plan["overrides"]]
  return f"{plan['step']} step of {plan['config']} on {plan['topology']}{''.join(flags)}"


def _measured_lines(plan: dict[str, Any]) -> list[str]:
  """Describe the time of a step that was measured on the devices of this machine."""
  seconds = plan["seconds"]["step"]
  rate = plan["tokens"] / seconds
  mfu = f"; MFU {100 * plan['mfu']:.1f} %" if plan["mfu"] else ""
  return [
    f"measured seconds: {seconds:.4g} a step on a batch of ones; {rate:,.0f} {plan['unit']}/s{mfu}"
  ]


def _seconds_lines(plan: dict[str, Any]) -> list[str]:
  """Tabulate the estimates of a step's time, part by part."""
  descriptions = {
    "products": "matrix products and kernels at the peak rate",
    "roofline": "each operation at the matrix units' or the memory's full rate, without kernels",
    "compiler": "each operation by the compiler's cycles, without kernels",
    "kernels": "attention kernels, at a measured share of the peak rate",
    "asynchronous": "collectives that overlap with computing, links at their full rate",
    "synchronous": "collectives that computing waits for",
    "step": "a step: the longest of products, cycles with kernels and overlapping collectives, "
    "plus the collectives waited for",
  }
  step_seconds = plan["seconds"]["step"]
  rates = []
  if step_seconds:
    rate = plan["tokens"] / step_seconds
    rates.append(f"{rate:,.0f} {plan['unit']}/s, {rate / plan['devices']:,.0f} a device")
  if "weights_seconds" in plan:
    weights = f"{plan['weight_bytes'] / _GIGA:.2f} GB of weights a token and device"
    rates.append(f"reading {weights} takes {plan['weights_seconds']:.4f} s of a step")
  else:
    rates.append(f"MFU {100 * (plan['mfu'] or 0):.0f} % at most")
  left_out = [
    "gaps between operations",
    "the host",
    "collectives that share links",
    "hops of all-to-alls",
  ]
  if plan["loops_skipped"]:
    left_out.insert(0, "further rounds of experts, which balanced loads skip")
  if plan["kernels_not_counted"]:
    left_out.insert(0, f"{plan['kernels_not_counted']:,} kernels of unknown FLOPs")
  lines = ["", "estimated seconds"]
  for key, description in descriptions.items():
    lines.append(f"  {plan['seconds'][key]:>8.4f}  {description}")
  lines.append(f"  {'; '.join(rates)}")
  lines.append(f"  left out: {', '.join(left_out)}")
  return lines
