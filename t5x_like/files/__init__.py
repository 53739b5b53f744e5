"""Files wherever they are: the one way to name, open, read, list, lock and commit them.

`places.place` opens a path or an address. Modules, from the bottom up; each imports only from those
before it:

  answers        one kind for each answer of a store, a network or a disk, whichever client passes it on
  streams        stdout and stderr that end no program when they cannot be written
  file_names     checks of names that are read from files
  checked_json   JSON from outside, parsed and checked
  local          a path: whole files, written aside, flushed and renamed
  clients        TensorStore for gs://, s3:// and http(s)://, fsspec for every other scheme
  remote         an address: ranges in parallel, retries, listings, conditional writes
  places         a path or an address by its spelling; directories to write to
  mirror         local copies of directories at an address
  globs          patterns of paths and addresses
  ranges         ranges of many files of a store, read at once
  remote_ranges  the same at an address
  locks          locks of the operating system
  leases         leases, where there are none
  outputs        files that commands write for the user
"""
