"""Networks as pure Keras 3 graphs, channels last. No data and no Horovod.

- `cosmoflow`          the network of arXiv 1808.04728, and compact ones of its family for small boxes
- `cosmoflow_mlperf`   the network of MLPerf HPC
- `layers`             what Keras lacks
- `flops`              parameters and floating-point operations, by layer and in total
- `catalogue`          every network by name, at its paper's size

Importing `sciml_kernel.models` imports no Keras; its modules do.
"""
