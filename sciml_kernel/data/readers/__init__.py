"""One file format a module; each has a `READER` (contracts.Reader) and enters by an entry point `sciml_kernel.readers`.

`tfrecord`   universes as TFRecord; below it `framing` (records), `example` (tf.train.Example), `lazy` (arrays)
"""
