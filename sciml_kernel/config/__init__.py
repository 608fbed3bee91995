"""What a run is: documented frozen fields, where each value came from, and a digest that names it.

- `schema`  the fields, with unit, range and meaning
- `load`    one merge order: defaults < recipe < site < file < notebook < command line
- `digest`  canonical JSON and its sha256
"""

from sciml_kernel.config.digest import canonical_json, digest
from sciml_kernel.config.load import Layer, Resolved, from_json, resolve, site_layer, to_json
from sciml_kernel.config.schema import DataConfig, OptimConfig, RunConfig, TrainConfig, param

__all__ = [
    "DataConfig",
    "Layer",
    "OptimConfig",
    "Resolved",
    "RunConfig",
    "TrainConfig",
    "canonical_json",
    "digest",
    "from_json",
    "param",
    "resolve",
    "site_layer",
    "to_json",
]
