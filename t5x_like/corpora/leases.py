"""Leases on directories at addresses, where there are no locks, so that one process prepares at a time."""

from t5x_like.files.lease import Lease
from t5x_like.files.objects import Address

SECONDS = 60.0  # after which the lease of a dead process is taken over


class _Directory:
  """A directory at an address, in the form that a lease needs."""

  def __init__(self, url: str):
    self.url, self._place = url, Address(url)

  def read(self, name: str) -> bytes | None:
    try:
      return (self._place / name).read_bytes()
    except FileNotFoundError:
      return None

  def write(self, name: str, data: bytes) -> None:
    (self._place / name).write_bytes(data)

  def create(self, name: str, data: bytes) -> bool:
    return (self._place / name).create(data)

  def delete(self, name: str) -> None:
    (self._place / name).unlink(missing_ok=True)


def lease(url: str, name: str) -> Lease:
  """Return the lease `<url>/<name>`, to hold while something is prepared there."""
  doing = "is writing this store ({}): wait for it or stop it, or choose another place"
  return Lease(_Directory(url.rstrip("/")), name=name, doing=doing, seconds=SECONDS)
