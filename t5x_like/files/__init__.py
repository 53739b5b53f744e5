"""Files at paths and URLs: the one way to name, open, read, list, lock and commit them.

A *path* is local; a *URL* has a scheme, such as `gs://bucket/file`. `paths.as_path` takes
both. The modules, in an order in which each imports only earlier ones:

  store_errors   the same kinds of errors from every client, network and disk
  streams        stdout and stderr that do not end the program when they cannot be written
  file_names     checks of names that are read from files
  checked_json   JSON from outside, parsed and checked
  local          local files, written under a temporary name, flushed and renamed
  clients        TensorStore for gs://, s3:// and http(s)://, fsspec for every other scheme
  remote         remote files: ranges in parallel, retries, listings, conditional writes
  paths          choice of `local` or `remote` by the scheme; checks of output directories
  segments       long files at URLs, in objects of bounded size
  mirror         local copies of remote directories
  globs          patterns of paths and URLs
  shard_files    the files that hold the shards of a store
  local_ranges   parallel reads of ranges of local shards
  remote_ranges  parallel reads of ranges of remote shards
  ranges         choice of `local_ranges` or `remote_ranges`
  locks          locks of the operating system
  leases         reservations of a directory where there are no locks; a dead process loses its own
  exclusive      a directory reserved by a lock or a lease
  outputs        files that commands write for the user
"""
