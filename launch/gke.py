"""Train on GKE as a JobSet of TPU slices or of nodes with GPUs.

  python launch/gke.py start --image=IMAGE --accelerator=tpu-v5-lite-podslice --topology=4x4 -- \\
    python -m t5x_like.train --config=configs/t5/base.py --workdir=gs://bucket/t5_base

With GPUs: --accelerator=nvidia-h100-80gb --nodes=2 --gpus_per_node=8.

`start` applies the manifest with kubectl, in the cluster and namespace that kubectl is set to;
--dry_run prints the manifest. launch/Dockerfile builds the image. Evictions, preemptions and
failures that a restart may fix restart the JobSet up to `--restarts` times; other exit codes end it
(docs/reference/exit-codes.md). The same command replaces a finished or failed JobSet and
continues the run. Secrets come from a Kubernetes secret (--secret), never from the command line.
`status`, `logs` and `stop` take the same flags.

With --slices=N --least_slices=M, the job continues after the loss of up to N - M slices. The pods
of a lost slice wait for new nodes and join again (launch/member.py).

Only the JobSet is created. Its pods end with it, at the latest `--max_hours` after a start, and a
finished JobSet is removed after a week. Nodes are billed as long as they exist. A node pool with
autoscaling removes its nodes; other node pools keep them.
"""

import argparse
import json
import math
import pathlib
import posixpath
import re
import sys

if __package__ in (None, ""):
  sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from launch import commands, spending
from launch.commands import Job, Shell, last_line, log, parse_answer
from launch.spending import Chips
from t5x_like.errors import EXITS_NOT_RESTARTED, TransientError, UserError, handle_errors
from t5x_like.redaction import redact_tree

_KIND = "jobsets.jobset.x-k8s.io"
_UNKNOWN = "unknown"
_IMAGE_FOLDERS = ("t5x_like", "configs", "launch", "tools")  # copied by launch/Dockerfile
_IMAGE = re.compile(r"[a-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?")
_WEEK_SECONDS = 7 * 24 * 3600
_CHECK_SECONDS = 600  # to pull the image and run launch/preflight.py at the start of a pod
_NODE_SECONDS = 900.0  # within this time, a pool with autoscaling removes nodes after their pods
_STOP_SECONDS = 600.0  # time to delete a JobSet, in addition to the grace period
# Directories of a node below which a job may have a directory. Others belong to the system.
_HOST_FOLDERS = ("/dev/shm", "/mnt/disks", "/tmp", "/var/tmp")
# Variables of the pods of an elastic job, from fields of the pod.
_POD_FIELDS = {
  "SLICE": "metadata.labels['jobset.sigs.k8s.io/job-index']",
  "RESTART": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']",
  "HOST_ADDRESS": "status.podIP",
}
# Appended to the secret of the processes, so that hosts of different starts do not meet.
_RESTART_SUFFIX = '"-$RESTART"'
_ONE_SLICE_A_POOL = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}


def manifest(job: Job, args) -> dict:
  """Return the JobSet (jobset.x-k8s.io/v1alpha2): a job per slice with a pod per host."""
  metadata = {"name": job.name}
  if not _is_gpu(args):
    metadata["annotations"] = _ONE_SLICE_A_POOL
  jobset = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": metadata,
    "spec": {
      "ttlSecondsAfterFinished": _WEEK_SECONDS,
      "failurePolicy": {
        "maxRestarts": args.restarts,
        "rules": [
          {
            "name": "useless",
            "action": "FailJobSet",
            "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
          },
          {"name": "again", "action": "RestartJobSet"},
        ],
      },
      "replicatedJobs": [
        {
          "name": "slice",
          "replicas": 1 if _is_gpu(args) else args.slices,
          "template": {"spec": _slice_job(job, args)},
        }
      ],
    },
  }
  if _is_elastic(args):
    # The processes of all slices end together. A slice that is then lost is not waited for.
    jobset["spec"]["successPolicy"] = {"operator": "Any"}
  return jobset


def _slice_job(job: Job, args) -> dict:
  """Return the Kubernetes job of one slice."""
  hosts, devices, node_labels = _gpus(args) if _is_gpu(args) else _tpus(args)
  container = _container(job, args, hosts, devices)
  rules = [
    {
      "action": "FailJob",
      "onExitCodes": {
        "containerName": "train",
        "operator": "In",
        "values": sorted(EXITS_NOT_RESTARTED),
      },
    }
  ]
  if _is_elastic(args):
    # Pods of a lost node are created again, and wait for a new node while the others train.
    lost_node = {"type": "DisruptionTarget", "status": "True"}
    rules.insert(0, {"action": "Ignore", "onPodConditions": [lost_node]})
  return {
    "parallelism": hosts,
    "completions": hosts,
    "completionMode": "Indexed",
    "backoffLimit": 0,
    "activeDeadlineSeconds": _deadline_seconds(args),
    "podFailurePolicy": {"rules": rules},
    "template": {
      "metadata": {"labels": {"app": job.name}},
      "spec": _pod(args, container, node_labels),
    },
  }


def _deadline_seconds(args) -> int:
  """Return the longest duration of a start."""
  seconds = math.ceil(3600 * args.max_hours)
  if args.limit is None:
    return seconds
  return min(seconds, math.ceil(3600 * args.limit.hours) + args.grace_seconds + _CHECK_SECONDS)


def _pod(args, container: dict, node_labels: dict) -> dict:
  """Return the pod of one host."""
  if args.spot:
    node_labels = node_labels | {"cloud.google.com/gke-spot": "true"}
  pod = {
    "restartPolicy": "Never",
    "hostNetwork": True,
    "dnsPolicy": "ClusterFirstWithHostNet",
    "terminationGracePeriodSeconds": args.grace_seconds,
    "nodeSelector": node_labels,
    "containers": [container],
  }
  if args.host_directory:
    pod["volumes"] = [
      {"name": "host", "hostPath": {"path": args.host_directory, "type": "DirectoryOrCreate"}}
    ]
    container["volumeMounts"] = [{"name": "host", "mountPath": args.host_directory}]
    pod["initContainers"] = [_permission_container(container, args.host_directory)]
  if args.service_account:
    pod["serviceAccountName"] = args.service_account
  return pod


def _container(job: Job, args, hosts: int, devices: dict) -> dict:
  """Return the container that checks its host and then runs the train command."""
  platform = "gpu" if _is_gpu(args) else "tpu"
  preflight = commands.preflight_line(job, platform)
  train = f"{preflight} && exec {commands.quote(*job.command)}"
  if args.limit is not None:
    train = spending.limit_command(preflight, commands.quote(*job.command), args.grace_seconds)
  command = f"{commands.job_key_line()}; {train}"
  if _is_elastic(args):
    command = f"{commands.job_key_line()}{_RESTART_SUFFIX}; {_member_line(job, args, hosts, train)}"
  if args.limit is not None:
    command = "; ".join([*spending.until_lines(args.limit), command])
  environment = dict(job.environment)
  if _is_gpu(args):  # On a TPU slice jax finds the hosts itself.
    command = f'export JAX_PROCESS_ID="$JOB_COMPLETION_INDEX"; {command}'
    environment["JAX_COORDINATOR_ADDRESS"] = f"{job.name}-slice-0-0.{job.name}:8476"
    environment["JAX_NUM_PROCESSES"] = str(hosts)
  variables = [
    {"name": name, "value": _literal(value)} for name, value in sorted(environment.items())
  ]
  container = {
    "name": "train",
    "image": args.image,
    # `exec` lets the train command receive the pod's TERM and save.
    "command": ["bash", "-c", _literal(command)],
    "env": variables,
    "resources": {"requests": devices, "limits": devices},
    "ports": [{"containerPort": port, "protocol": "TCP"} for port in (8471, 8476, 8080)],
  }
  if _is_elastic(args):
    for name, field in _POD_FIELDS.items():
      variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})
  if args.secret:
    container["envFrom"] = [{"secretRef": {"name": args.secret}}]
  return container


def _member_line(job: Job, args, hosts: int, train: str) -> str:
  """Return the command of a host of an elastic job, with the train command as its argument."""
  limits = {
    "slices": args.slices,
    "hosts_per_slice": hosts,
    "least_slices": args.least_slices,
    "restarts": args.restarts,
    "grace_seconds": args.grace_seconds,
  }
  member = commands.member_line(job, "tpu", limits)
  pod_flags = '--slice="$SLICE" --worker="$JOB_COMPLETION_INDEX" --address="$HOST_ADDRESS"'
  return f"exec {member} {pod_flags} -- bash -c {commands.quote(train)}"


def _permission_container(container: dict, directory: str) -> dict:
  """Return a container that lets the image's user write to a directory of the node.

  Kubernetes creates the directory for root.
  """
  return {
    "name": "open",
    "image": container["image"],
    "command": ["chmod", "1777", directory],
    "securityContext": {"runAsUser": 0},
    "volumeMounts": container["volumeMounts"],
  }


def _is_gpu(args) -> bool:
  return args.accelerator.startswith("nvidia")


def _is_elastic(args) -> bool:
  """Return whether the job may train with fewer slices than it has."""
  return args.least_slices is not None and args.least_slices < args.slices


def _tpus(args) -> tuple[int, dict, dict]:
  """Return the number of hosts, the devices of a host and the node labels of a TPU slice."""
  chips = math.prod(int(n) for n in args.topology.split("x"))
  labels = {"gke-tpu-accelerator": args.accelerator, "gke-tpu-topology": args.topology}
  devices = {"google.com/tpu": min(args.chips_per_host, chips)}
  return max(1, chips // args.chips_per_host), devices, _labels(labels)


def _gpus(args) -> tuple[int, dict, dict]:
  """Return the number of nodes, the devices of a node and the labels of nodes with GPUs."""
  return (
    args.nodes,
    {"nvidia.com/gpu": args.gpus_per_node},
    _labels({"gke-accelerator": args.accelerator}),
  )


def _labels(labels: dict[str, str]) -> dict[str, str]:
  return {f"cloud.google.com/{name}": value for name, value in labels.items()}


def _literal(text: str) -> str:
  """Escape `$(NAME)`, which Kubernetes would replace by a variable, also inside quotes."""
  return text.replace("$", "$$")


def state(name: str, shell: Shell) -> tuple[str | None, str]:
  """Return the state of a JobSet and its reason.

  The state is Completed, Failed or Running, None without a JobSet, and `_UNKNOWN` in a dry run.
  """
  result = shell.run(
    ["kubectl", "get", _KIND, name, "--ignore-not-found", "--output=json"], is_query=True
  )
  if shell.dry_run:
    return _UNKNOWN, ""
  if result.returncode:
    raise _failure("get", result.stderr)
  if not result.stdout.strip():
    return None, ""
  status = parse_answer(result, dict, "kubectl get").get("status") or {}
  for condition in status.get("conditions") or []:
    if condition.get("status") == "True" and condition.get("type") in ("Completed", "Failed"):
      return condition["type"], last_line(str(condition.get("message", "")))
  return "Running", ""


def waiting_reasons(name: str, shell: Shell) -> list[str]:
  """Return why pods of a JobSet do not run: each reason once, with the number of its pods."""
  result = shell.run(
    ["kubectl", "get", "pods", _pod_selector(name), "--output=json"], is_query=True
  )
  if shell.dry_run:
    return []
  if result.returncode:
    raise _failure("get pods", result.stderr)
  counts: dict[str, int] = {}
  for pod in parse_answer(result, dict, "kubectl get pods").get("items") or []:
    reason = _waiting_reason(pod.get("status") or {})
    if reason:
      counts[reason] = counts.get(reason, 0) + 1
  return [f"{count} pods wait: {reason}" for reason, count in counts.items()]


def _waiting_reason(status: dict) -> str:
  """Return why a pod does not run: its image, or no node; "" if neither is the reason."""
  containers = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
  for container in containers:
    waiting = (container.get("state") or {}).get("waiting") or {}
    if "Image" in str(waiting.get("reason")):
      image = container.get("image")
      return f"{waiting['reason']}: {image} cannot be pulled; push it, or see --image"
  for condition in status.get("conditions") or []:
    if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
      return f"no node: {last_line(str(condition.get('message', '')))}"
  return ""


def _pod_selector(name: str) -> str:
  return f"--selector=jobset.sigs.k8s.io/jobset-name={name}"


def start(job: Job, args, shell: Shell) -> int:
  """Apply the JobSet unless it is running; return the exit code."""
  current_state, reason = state(job.name, shell)
  if current_state == "Running":
    log(f"{job.name} is running already; see: status, logs")
    return 0
  if current_state not in (None, _UNKNOWN):
    log(f"{job.name} is replaced; before: {current_state.lower()}: {reason}")
    stop(job.name, args, shell)  # Applying an ended JobSet would not start it again.
  jobset = manifest(job, args)
  if shell.dry_run:
    print(json.dumps(redact_tree(jobset), indent=2))
  result = shell.run(["kubectl", "apply", "--filename=-"], text=json.dumps(jobset, indent=2))
  if result.returncode:
    raise _failure("apply", result.stderr)
  if shell.dry_run:
    log(f"{job.name}: nothing was run")
    return 0
  if _is_gpu(args):
    size = f"{args.nodes} nodes of {args.gpus_per_node} GPUs"
  else:
    size = f"{args.slices} x {args.topology}"
  log(
    f"{job.name}: requested {size}; it ends at most {args.max_hours:g} hours after a start "
    "(--max_hours)"
  )
  log(
    "nodes of a pool without autoscaling are billed after its end too, until the pool is "
    "resized or deleted"
  )
  return 0


def stop(name: str, args, shell: Shell) -> None:
  """Delete the JobSet and wait until its pods have saved and ended."""
  seconds = args.grace_seconds + _STOP_SECONDS
  result = shell.run(
    ["kubectl", "delete", _KIND, name, "--ignore-not-found", "--wait=true"], seconds=seconds
  )
  if result.returncode:
    raise _failure("delete", result.stderr)


def check_host_directory(path: str) -> None:
  """Refuse a directory of the nodes that the system may need.

  The job gives every user of the node permission to write to the directory.

  Raises:
    UserError: the directory is not inside one of `_HOST_FOLDERS`.
  """
  parent = posixpath.dirname(path)
  is_below = any(parent == folder or parent.startswith(f"{folder}/") for folder in _HOST_FOLDERS)
  if posixpath.normpath(path) != path or not is_below:
    raise UserError(
      f"--host_directory={path}: expected a directory for this job only, below "
      f"{', '.join(_HOST_FOLDERS)}, such as /dev/shm/t5x_like; every user of the node may write "
      "to it"
    )


def _failure(action: str, text: str) -> Exception:
  """Return the error for a message of kubectl."""
  message = last_line(text)
  lower_text = text.lower()
  missing_phrases = ("the server doesn't have a resource type", "no matches for kind")
  if any(phrase in lower_text for phrase in missing_phrases):
    return UserError(
      f"kubectl {action}: {message}; install JobSet in the cluster (jobset.sigs.k8s.io)"
    )
  if any(phrase in lower_text for phrase in ("forbidden", "unauthorized", "invalid", "quota")):
    return UserError(
      f"kubectl {action}: {message}; see the flags, and which cluster kubectl config "
      "current-context names"
    )
  return TransientError(f"kubectl {action}: {message}")


def _positive(text: str) -> int:
  """Parse the value of a flag that takes a number above 0."""
  if not text.isdecimal() or not int(text):
    raise argparse.ArgumentTypeError(f"found {text!r}, expected a number above 0")
  return int(text)


def _make_parser() -> commands.Parser:
  parser = commands.make_parser(__doc__, ("start", "status", "logs", "stop"))
  parser.add_argument("--image", default="", help="image of launch/Dockerfile in a registry")
  parser.add_argument(
    "--accelerator",
    default="tpu-v5-lite-podslice",
    help="accelerator of the nodes, such as nvidia-h100-80gb (default: %(default)s)",
  )
  parser.add_argument(
    "--topology", default="4x4", help="topology of a TPU slice (default: %(default)s)"
  )
  parser.add_argument(
    "--nodes", type=_positive, default=1, help="number of nodes with GPUs (default: 1)"
  )
  parser.add_argument(
    "--gpus_per_node", type=_positive, default=8, help="GPUs of a node (default: 8)"
  )
  parser.add_argument(
    "--chips_per_host", type=_positive, default=4, help="TPU chips of a host (default: 4)"
  )
  parser.add_argument(
    "--slices", type=_positive, default=1, help="number of TPU slices (default: 1)"
  )
  parser.add_argument(
    "--least_slices",
    type=_positive,
    help="fewest TPU slices that train while others are lost (default: all)",
  )
  parser.add_argument("--spot", action="store_true", help="use spot nodes")
  parser.add_argument(
    "--restarts",
    type=int,
    default=10,
    help="number of restarts after failures and evictions (default: 10)",
  )
  parser.add_argument(
    "--grace_seconds",
    type=int,
    default=120,
    help="time that a pod has for a save before it ends (default: 120)",
  )
  parser.add_argument(
    "--secret", default="", help="Kubernetes secret whose keys become environment variables"
  )
  parser.add_argument(
    "--host_directory",
    default="",
    help="directory of each node for config.checkpoint.emergency.directory",
  )
  parser.add_argument(
    "--service_account", default="", help="service account that may write to the bucket"
  )
  parser.add_argument(
    "--max_hours",
    type=commands.parse_hours,
    default=168.0,
    help="longest duration of one start; each restart counts from 0 (default: 168)",
  )
  spending.add_flags(parser)
  return parser


def _chips(args) -> Chips:
  """Return the accelerators of the job."""
  kind = spending.chip_kind(args.accelerator)
  if _is_gpu(args):
    return Chips(kind, args.nodes * args.gpus_per_node)
  return Chips(kind, args.slices * math.prod(int(n) for n in args.topology.split("x")))


def _check_start(args) -> None:
  """Check the flags and the train command of `start`.

  Raises:
    UserError: a flag is missing or invalid, or the train command is.
  """
  commands.check_train_command(args, folders=_IMAGE_FOLDERS)
  if not args.image:
    raise UserError(
      "--image is missing: docker build -f launch/Dockerfile -t IMAGE . && docker push IMAGE"
    )
  if not _IMAGE.fullmatch(args.image):
    raise UserError(
      f"--image={args.image}: expected the name of an image in a registry, such as "
      "us-docker.pkg.dev/PROJECT/training/t5x_like:1"
    )
  if _is_gpu(args) and args.slices > 1:
    raise UserError(f"--slices={args.slices}: GPUs have no slices; give --nodes={args.slices}")
  commands.check_least_slices(args)
  if not all(size.isdecimal() and int(size) for size in args.topology.split("x")):
    raise UserError(f"--topology={args.topology}: expected a shape such as 4x4 or 2x2x4")


@handle_errors
def main(argv: list[str] | None = None) -> int:
  args = commands.parse(_make_parser(), argv)
  job = commands.read_job(args)
  shell = Shell(args.dry_run)
  commands.check_remote(job, "the cluster")
  commands.refuse_secrets(job)
  if args.host_directory:
    check_host_directory(args.host_directory)
  if args.action == "start":
    _check_start(args)
    reserve_seconds = args.grace_seconds + _NODE_SECONDS
    limit = spending.set_limit(args, _chips(args), args.max_hours, reserve_seconds)
    args.limit = limit if spending.is_limited(args) else None
    return start(job, args, shell)
  if args.action == "stop":
    stop(job.name, args, shell)
    log(f"{job.name} is deleted; nodes of a pool without autoscaling remain, and are billed")
    return 0
  if args.action == "logs":
    return shell.stream(
      [
        "kubectl",
        "logs",
        _pod_selector(job.name),
        "--prefix",
        "--tail=200",
        "--max-log-requests=512",
      ]
    )
  current_state, reason = state(job.name, shell)
  line = f"{job.name}: {(current_state or 'no such JobSet').lower()}"
  print(f"{line}: {reason}" if reason else line)
  if current_state == "Running":
    for reason in waiting_reasons(job.name, shell):
      print(f"{job.name}: {reason}")
  return 0


if __name__ == "__main__":
  sys.exit(main())
