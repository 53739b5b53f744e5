"""Files at paths and addresses: the one way to name, open, read, list, lock and commit them.

`paths.as_path` takes a path or an address. Modules, from the bottom up; each imports only earlier
ones:

  store_errors   one kind for each error of a store, a network or a disk, whatever the client
  streams        stdout and stderr that end no program when they cannot be written
  file_names     checks of names that are read from files
  checked_json   JSON from outside, parsed and checked
  local          a path: whole files, written under a temporary name, flushed and renamed
  clients        TensorStore for gs://, s3:// and http(s)://, fsspec for every other scheme
  remote         an address: ranges in parallel, retries, listings, conditional writes
  paths          a path or an address by its spelling; directories to write to
  mirror         local copies of directories at an address
  globs          patterns of paths and addresses
  shard_files    the files that hold the shards of a store
  local_ranges   ranges of many such files on a disk, read at once
  remote_ranges  the same at an address
  ranges         opens the shards of a store at a path or address
  locks          locks of the operating system
  leases         leases, where there are none
  exclusive      a directory reserved by a lock or a lease
  outputs        files that commands write for the user
"""
