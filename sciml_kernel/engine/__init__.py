"""What runs on a rank. Nothing here is imported by the notebook: a pool calls `engine.entry:train` by name.

- `entry`       one training, called on every rank with JSON; writes how it ended into the run record
- `loop`        the one loop: read this first
- `steps`       the compiled training and validation step
- `collective`  sums over the ranks: Horovod, mpi4py or a single rank; the only door to both
- `divergence`  which ranks brought what, after Horovod refused a tensor or gave up waiting
- `device`      GPU by local rank, threads, seeds, precision
- `checkpoint`  whole files or none; every rank equal after a load
- `interrupt`   SIGINT to a flag that all ranks agree on
- `report`      metrics on two roads: the record's file, and `publish` to whoever looks on
- `predictions` the table of the validation samples
- `rank_log`    what a rank prints, kept in the run record
"""
